#include "nesting.h"

#include <string.h>

void nesting_around(size_t count, const int64_t *start, const int64_t *end, const int32_t *thread, int64_t *outer) {
    for (size_t i = 0; i < count; i++) {
        int64_t open = i && thread[i - 1] == thread[i] ? (int64_t)i - 1 : -1;
        /* What ended before is around nothing that follows: each interval is passed over once. */
        while (open >= 0 && end[open] <= start[i]) open = outer[open];
        outer[i] = open;
    }
}

void nesting_chosen(size_t count, int64_t *at, const int64_t *instant, const int64_t *outer, const int64_t *end,
                    const uint8_t *chosen) {
    for (size_t i = 0; i < count; i++)
        while (at[i] >= 0 && (!chosen[at[i]] || end[at[i]] <= instant[i])) at[i] = outer[at[i]];
}

size_t nesting_outermost(size_t count, const int64_t *end, const int64_t *outer, const uint8_t *chosen,
                         int64_t *found) {
    static const uint8_t none[8] = {0};
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (i + sizeof none <= count && !memcmp(chosen + i, none, sizeof none)) {
            i += sizeof none - 1; /* few are chosen, mostly */
            continue;
        }
        if (!chosen[i] || (outer[i] >= 0 && chosen[outer[i]] && end[i] <= end[outer[i]])) continue;
        found[kept++] = (int64_t)i;
    }
    return kept;
}
