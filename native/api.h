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

/* For functions with a parameter that is a constant wherever they are called: each caller gets a loop of its own. */
#if defined(_MSC_VER)
#define SPECIALISED static __forceinline
#elif defined(__GNUC__)
#define SPECIALISED static inline __attribute__((always_inline))
#else
#define SPECIALISED static inline
#endif

#endif
