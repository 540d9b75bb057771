/* Runs the passes that the fuzzer leaves out over columns of any numbers: what a digest's or a trace's columns may be.
 *
 *   hostile [ROUNDS]
 *
 * Columns have the order that their callers give them, and any values: the least, the largest, equal ones, intervals
 * that end before they start. Each array is an allocation of its own, so that AddressSanitizer sees the byte behind it.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "columns.h"
#include "intervals.h"
#include "nesting.h"

enum { LONGEST = 64, LAYERS = 4 };

static uint64_t state = 88172645463325252u;

static uint64_t any(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Half of the values lie close together, as those of a job do; the others anywhere. */
static int64_t instant(void) {
    static const int64_t edges[] = {INT64_MIN, INT64_MIN + 1, -1, 0, 1, INT64_MAX - 1, INT64_MAX};
    const uint64_t chance = any();
    if (chance & 1) {
        return (int64_t)(any() % 97);
    }
    return chance & 2 ? edges[any() % (sizeof edges / sizeof *edges)] : (int64_t)any();
}

static void *room(size_t count, size_t size) {
    void *memory = calloc(count + !count, size);
    if (memory == NULL) {
        abort();
    }
    return memory;
}

static int compare(const void *left, const void *right) {
    const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

static int64_t *instants(size_t count, size_t space, bool sorted) {
    int64_t *column = room(space, sizeof *column);
    for (size_t i = 0; i < count; i++) {
        column[i] = instant();
    }
    if (sorted) {
        qsort(column, count, sizeof *column, compare);
    }
    return column;
}

static uint8_t *flags(size_t count) {
    uint8_t *column = room(count, 1);
    for (size_t i = 0; i < count; i++) {
        column[i] = any() & 1;
    }
    return column;
}

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

static void search_and_add(void) {
    const size_t size = any() % LONGEST, count = any() % LONGEST;
    int64_t *ascending = instants(size, size, true), *values = instants(count, count, any() & 1);
    int64_t *places = room(count, sizeof *places), *sums = room(size, sizeof *sums);
    uint8_t *chosen = flags(count);
    columns_search(size, ascending, count, values, any() & 1, places);
    for (size_t i = 0; i < count; i++) {
        require(places[i] >= 0 && (size_t)places[i] <= size);
    }
    columns_add(count, values, chosen, any() & 1 ? values : NULL, size, sums);
    free(ascending), free(values), free(places), free(sums), free(chosen);
}

/* Sorted, disjoint intervals, as sets have them. */
static size_t set(size_t count, int64_t **start, int64_t **end) {
    *start = instants(count, 2 * count, false), *end = instants(count, 2 * count, false);
    const size_t length = intervals_union(count, *start, *end);
    require(length <= 2 * count);
    return length;
}

static void sets(void) {
    int64_t *starts[2], *ends[2];
    const size_t one = set(any() % LONGEST, &starts[0], &ends[0]), other = set(any() % LONGEST, &starts[1], &ends[1]);
    int64_t *start = room(one + other, sizeof *start), *end = room(one + other, sizeof *end);
    require(intervals_either(one, starts[0], ends[0], other, starts[1], ends[1], start, end) <= one + other);
    free(starts[0]), free(ends[0]), free(starts[1]), free(ends[1]), free(start), free(end);
}

static void partition(void) {
    const size_t layers = 1 + any() % LAYERS;
    int64_t *edge = instants(any() % LONGEST, LONGEST, true);
    int64_t *stop = room(layers, sizeof *stop);
    int64_t *start = room(2 * LAYERS * LONGEST, sizeof *start), *end = room(2 * LAYERS * LONGEST, sizeof *end);
    size_t edges = 0, total = 0;
    for (size_t i = 0; i < LONGEST; i++) {
        if (!edges || edge[i] > edge[edges - 1]) {
            edge[edges++] = edge[i];
        }
    }
    for (size_t layer = 0; layer < layers; layer++) {
        int64_t *from, *to;
        const size_t length = set(any() % LONGEST, &from, &to);
        for (size_t i = 0; i < length; i++, total++) {
            start[total] = from[i], end[total] = to[i];
        }
        stop[layer] = (int64_t)total;
        free(from), free(to);
    }
    const size_t most = edges + 2 * total;
    int64_t *pieces[4];
    for (size_t i = 0; i < 4; i++) {
        pieces[i] = room(most, sizeof **pieces);
    }
    require(intervals_partition(edges, edge, layers, stop, start, end, pieces[0], pieces[1], pieces[2], pieces[3]) <=
            most);
    for (size_t i = 0; i < 4; i++) {
        free(pieces[i]);
    }
    free(edge), free(stop), free(start), free(end);
}

static void nesting(void) {
    const size_t count = any() % LONGEST;
    int64_t *start = instants(count, count, any() & 1), *end = instants(count, count, false);
    int64_t *outer = room(count, sizeof *outer), *at = room(count, sizeof *at), *found = room(count, sizeof *found);
    int64_t *when = instants(count, count, false);
    int32_t *thread = room(count, sizeof *thread);
    uint8_t *chosen = flags(count);
    for (size_t i = 0; i < count; i++) {
        thread[i] = (int32_t)(any() % 3) - 1;
    }
    nesting_around(count, start, end, thread, outer);
    for (size_t i = 0; i < count; i++) {
        require(outer[i] >= -1 && outer[i] < (int64_t)i);
        at[i] = (int64_t)(any() % (count + 1)) - 1;
    }
    nesting_chosen(count, at, when, outer, end, chosen);
    require(nesting_outermost(count, end, outer, chosen, found) <= count);
    free(start), free(end), free(outer), free(at), free(found), free(when), free(thread), free(chosen);
}

int main(int arguments, char **given) {
    const long rounds = arguments > 1 ? strtol(given[1], NULL, 10) : 100000;
    for (long round = 0; round < rounds; round++) {
        search_and_add();
        sets();
        partition();
        nesting();
    }
    printf("hostile columns: %ld rounds\n", rounds);
    return 0;
}
