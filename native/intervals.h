/* Sets of instants as sorted, disjoint, half-open intervals, as `tb_ddp_doctor/digest/intervals.py` has them in numpy. */
#ifndef INTERVALS_H
#define INTERVALS_H

#include <stddef.h>
#include <stdint.h>

#include "api.h"

/* More layers are not cut at once. */
#define INTERVALS_LAYERS 64

/* The union of intervals, which come in any order, and mostly by start. `start` and `end` are written to, and have room
 * for twice as many: the union stands at their begin. Returns its length. */
NATIVE_API size_t intervals_union(size_t count, int64_t *start, int64_t *end);

/* The union of two sets into `start` and `end`. Returns its length, at most that of both. */
NATIVE_API size_t intervals_either(size_t count, const int64_t *one_start, const int64_t *one_end, size_t others,
                                   const int64_t *other_start, const int64_t *other_end, int64_t *start, int64_t *end);

/* Cuts the time from the first edge to the last into pieces, each of the first layer that holds it, or of the number
 * of layers where none does, and of the latest edge before it. Edges ascend, none twice. Layers are sets of intervals,
 * one behind the other in `start` and `end`: `stop` is where each ends. Returns the number of pieces, at most that of
 * edges and twice that of intervals. */
NATIVE_API size_t intervals_partition(size_t edges, const int64_t *edge, size_t layers, const int64_t *stop,
                                      const int64_t *start, const int64_t *end, int64_t *piece_start,
                                      int64_t *piece_end, int64_t *piece_layer, int64_t *piece_edge);

/* The least and the most of some instants in each cell of time, `bits` wide from `first` on; `least` and `most` hold
 * the latest and the earliest of all times before. */
NATIVE_API void intervals_cells(size_t count, const int64_t *instant, int64_t first, int bits, int64_t *least,
                                int64_t *most);

#endif
