/* Passes over columns of numbers, as `tb_ddp_doctor/digest/columns.py` has them in numpy. */
#ifndef COLUMNS_H
#define COLUMNS_H

#include <stddef.h>
#include <stdint.h>

#include "api.h"

/* For each value the first place of an ascending column that holds no less, or with `behind` more. Values that ascend
 * themselves take a step or two each. */
NATIVE_API void columns_search(size_t size, const int64_t *ascending, size_t count, const int64_t *values, int behind,
                               int64_t *places);

/* Adds each chosen value to the sum of its index; without `values` each is 1. An index outside of the sums counts
 * nowhere. */
NATIVE_API void columns_add(size_t count, const int64_t *index, const uint8_t *chosen, const int64_t *values,
                            size_t size, int64_t *sums);

#endif
