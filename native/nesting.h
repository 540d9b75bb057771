/* Which intervals lie around which, as `tb_ddp_doctor/digest/nesting.py` has it in numpy. */
#ifndef NESTING_H
#define NESTING_H

#include <stddef.h>
#include <stdint.h>

#include "api.h"

/* For each interval, sorted by thread and start, the latest before it that still runs when it starts, or -1. */
NATIVE_API void nesting_around(size_t count, const int64_t *start, const int64_t *end, const int32_t *thread,
                               int64_t *outer);

#endif
