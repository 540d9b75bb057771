#include "columns.h"

/* The first place that holds no less than a value, in steps that double from a place near it. */
static size_t place(size_t size, const int64_t *ascending, int64_t value, size_t near) {
    size_t low = 0, high = size, step = 1;
    if (near < size && ascending[near] < value) {
        low = near + 1;
        while (step <= size - low && ascending[low + step - 1] < value) {
            low += step;
            step *= 2;
        }
        if (step < size - low) high = low + step;
    } else {
        high = near;
        while (step <= high && ascending[high - step] >= value) {
            high -= step;
            step *= 2;
        }
        if (step < high) low = high - step;
    }
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ascending[middle] < value) low = middle + 1;
        else high = middle;
    }
    return low;
}

void columns_search(size_t size, const int64_t *ascending, size_t count, const int64_t *values, int behind,
                    int64_t *places) {
    size_t near = 0;
    for (size_t i = 0; i < count; i++) {
        if (!behind) near = place(size, ascending, values[i], near);
        else if (values[i] < INT64_MAX) near = place(size, ascending, values[i] + 1, near);
        else near = size;
        places[i] = (int64_t)near;
    }
}

void columns_add(size_t count, const int64_t *index, const uint8_t *chosen, const int64_t *values, size_t size,
                 int64_t *sums) {
    /* Unsigned, since those wrap around as numpy's do. */
    uint64_t *total = (uint64_t *)sums;
    for (size_t i = 0; i < count; i++)
        if (chosen[i] && (uint64_t)index[i] < size) total[index[i]] += values ? (uint64_t)values[i] : 1;
}
