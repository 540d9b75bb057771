/* Which intervals lie around which, as `tb_ddp_doctor/digest/nesting.py` has it in numpy. */
#ifndef NESTING_H
#define NESTING_H

#include <stddef.h>
#include <stdint.h>

#include "api.h"

/* For each interval, sorted by thread and start, the latest before it that still runs when it starts, or -1. */
NATIVE_API void nesting_around(size_t count, const int64_t *start, const int64_t *end, const int32_t *thread,
                               int64_t *outer);

/* From each of some intervals outwards, in place: the first that is chosen and runs at an instant, or -1. */
NATIVE_API void nesting_chosen(size_t count, int64_t *at, const int64_t *instant, const int64_t *outer,
                               const int64_t *end, const uint8_t *chosen);

/* The chosen intervals but for those within a chosen one that is next around them. Returns how many. */
NATIVE_API size_t nesting_outermost(size_t count, const int64_t *end, const int64_t *outer, const uint8_t *chosen,
                                    int64_t *found);

#endif
