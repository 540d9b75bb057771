/* What the library shows to its callers. */
#ifndef DDP_DOCTOR_API_H
#define DDP_DOCTOR_API_H

#if defined(_WIN32)
#define NATIVE_API __declspec(dllexport)
#elif defined(__GNUC__)
#define NATIVE_API __attribute__((visibility("default")))
#else
#define NATIVE_API
#endif

#endif
