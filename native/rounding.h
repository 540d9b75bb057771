/* Times to whole ns, as numpy rounds them. */
#ifndef DDP_DOCTOR_ROUNDING_H
#define DDP_DOCTOR_ROUNDING_H

#include <stdint.h>

/* Without its fraction; what is out of range is as numpy has it. */
static inline int64_t whole(double value) { return value > -0x1p63 && value < 0x1p63 ? (int64_t)value : INT64_MIN; }

/* The nearest whole number, the even one of two, as rint has it, which would need the library of mathematics. */
static inline double rounded(double value) {
    const double large = 0x1p52;
    if (value >= 0 && value < large) return value + large - large;
    if (value < 0 && value > -large) return value - large + large;
    return value;
}

static inline int64_t nearest(double value) { return whole(rounded(value)); }

#endif
