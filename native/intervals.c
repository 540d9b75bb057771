#include "intervals.h"

#include <string.h>

enum { FEW = 16 };

/* The first place from `low` on, below `high`, whose start is greater, or as great with `same`. */
static size_t above(const int64_t *start, size_t low, size_t high, int64_t value, int same) {
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (same ? start[middle] < value : start[middle] <= value) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void insert(int64_t *start, int64_t *end, size_t first, size_t stop) {
    for (size_t i = first + 1; i < stop; i++) {
        int64_t moved = start[i], its_end = end[i];
        size_t at = i;
        for (; at > first && start[at - 1] > moved; at--) {
            start[at] = start[at - 1];
            end[at] = end[at - 1];
        }
        start[at] = moved;
        end[at] = its_end;
    }
}

/* Merges two sorted halves; only where they overlap is anything moved. */
static void merge(int64_t *start, int64_t *end, size_t first, size_t middle, size_t stop, int64_t *spare_start,
                  int64_t *spare_end) {
    if (start[middle - 1] <= start[middle]) return;
    first = above(start, first, middle, start[middle], 0);
    stop = above(start, middle, stop, start[middle - 1], 1);
    size_t left = 0, count = middle - first, right = middle, to = first;
    memcpy(spare_start, start + first, count * sizeof *start);
    memcpy(spare_end, end + first, count * sizeof *end);
    while (left < count) {
        if (right < stop && start[right] < spare_start[left]) {
            start[to] = start[right];
            end[to++] = end[right++];
        } else {
            start[to] = spare_start[left];
            end[to++] = spare_end[left++];
        }
    }
}

/* Sorts by start: a merge sort that passes over what is in order. */
static void sort(int64_t *start, int64_t *end, size_t first, size_t stop, int64_t *spare_start, int64_t *spare_end) {
    if (stop - first <= FEW) {
        insert(start, end, first, stop);
        return;
    }
    size_t middle = first + (stop - first) / 2;
    sort(start, end, first, middle, spare_start, spare_end);
    sort(start, end, middle, stop, spare_start, spare_end);
    merge(start, end, first, middle, stop, spare_start, spare_end);
}

size_t intervals_union(size_t count, int64_t *start, int64_t *end) {
    size_t kept = 0, found = 0, descents = 0;
    for (size_t i = 0; i < count; i++) {
        if (end[i] <= start[i]) continue;
        descents += kept && start[i] < start[kept - 1];
        start[kept] = start[i];
        end[kept++] = end[i];
    }
    if (descents) sort(start, end, 0, kept, start + count, end + count);
    for (size_t i = 0; i < kept; i++) {
        if (found && start[i] <= end[found - 1]) {
            if (end[i] > end[found - 1]) end[found - 1] = end[i];
        } else {
            start[found] = start[i];
            end[found++] = end[i];
        }
    }
    return found;
}

size_t intervals_either(size_t count, const int64_t *one_start, const int64_t *one_end, size_t others,
                        const int64_t *other_start, const int64_t *other_end, int64_t *start, int64_t *end) {
    size_t one = 0, other = 0, found = 0;
    while (one < count || other < others) {
        int first = other >= others || (one < count && one_start[one] <= other_start[other]);
        int64_t from = first ? one_start[one] : other_start[other];
        int64_t until = first ? one_end[one++] : other_end[other++];
        if (found && from <= end[found - 1]) {
            if (until > end[found - 1]) end[found - 1] = until;
        } else {
            start[found] = from;
            end[found++] = until;
        }
    }
    return found;
}

size_t intervals_partition(size_t edges, const int64_t *edge, size_t layers, const int64_t *stop, const int64_t *start,
                           const int64_t *end, int64_t *piece_start, int64_t *piece_end, int64_t *piece_layer,
                           int64_t *piece_edge) {
    /* Of each layer that has intervals: which it is, its next interval, when that begins or ends, and whether it holds. */
    size_t number[INTERVALS_LAYERS], at[INTERVALS_LAYERS], last[INTERVALS_LAYERS], some = 0;
    int64_t next[INTERVALS_LAYERS];
    unsigned char holds[INTERVALS_LAYERS] = {0};
    size_t pieces = 0, owner = layers;
    if (edges < 2 || layers > INTERVALS_LAYERS) return 0;
    for (size_t k = 0; k < layers; k++) {
        at[some] = k ? (size_t)stop[k - 1] : 0;
        last[some] = (size_t)stop[k];
        if (at[some] == last[some]) continue;
        next[some] = start[at[some]];
        number[some++] = k;
    }
    int64_t now = edge[0];
    for (size_t e = 0; e + 1 < edges;) {
        int64_t until = edge[e + 1];
        size_t holding = layers;
        for (size_t k = some; k-- > 0;) {
            while (next[k] <= now && at[k] < last[k]) {
                if (!holds[k]) next[k] = end[at[k]];
                else next[k] = ++at[k] < last[k] ? start[at[k]] : INT64_MAX;
                holds[k] = !holds[k];
            }
            if (next[k] < until) until = next[k];
            if (holds[k]) holding = number[k];
        }
        if (holding != owner || now == edge[e]) {
            owner = holding;
            piece_start[pieces] = now;
            piece_layer[pieces] = (int64_t)owner;
            piece_edge[pieces++] = (int64_t)e;
        }
        piece_end[pieces - 1] = now = until;
        if (until == edge[e + 1]) e++;
    }
    return pieces;
}

void intervals_cells(size_t count, const int64_t *instant, int64_t first, int bits, int64_t *least, int64_t *most) {
    for (size_t i = 0; i < count; i++) {
        size_t cell = (size_t)(((uint64_t)instant[i] - (uint64_t)first) >> bits);
        if (instant[i] < least[cell]) least[cell] = instant[i];
        if (instant[i] > most[cell]) most[cell] = instant[i];
    }
}
