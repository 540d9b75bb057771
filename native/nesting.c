#include "nesting.h"

void nesting_around(size_t count, const int64_t *start, const int64_t *end, const int32_t *thread, int64_t *outer) {
    for (size_t i = 0; i < count; i++) {
        int64_t open = i && thread[i - 1] == thread[i] ? (int64_t)i - 1 : -1;
        /* What ended before is around nothing that follows: each interval is passed over once. */
        while (open >= 0 && end[open] <= start[i]) open = outer[open];
        outer[i] = open;
    }
}
