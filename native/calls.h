/* Sums over the calls in the rows of ranks' tracks, as `tb_ddp_doctor/job/row_calls.py` has them in numpy. */
#ifndef CALLS_H
#define CALLS_H

#include <stddef.h>
#include <stdint.h>

#include "api.h"

/* The rows, calls and pairs of all ranks: a pair is a stretch of rows and a call in it. */
struct calls_table {
    size_t ranks;
    /* Where each rank's rows begin, and its calls, and where the last rank's end; and how many pairs each has. */
    const int64_t *rows, *calls, *pairs;
    /* Of each rank its pairs: which of its calls, how many of these, and how long they take, ns. */
    const int32_t *const *call;
    const int64_t *const *count, *const *ns;
    /* The pairs of each row, as the first of its rank's and the one behind the last. */
    const int32_t *first, *end;
    /* One more than the rank with the most pairs has: functions need `room` for four columns of so many numbers. */
    size_t size;
};

/* The time of the pairs of each row in a share of each call, ns. */
NATIVE_API void calls_share(const struct calls_table *, const double *share_of_call, double *ns,
                            double *room);

/* The same, times the part of the row that counts, in whole ns, each at the row's place in a column of `size`; it has
 * nothing below 0, and nothing from rows whose place is outside of the column. */
NATIVE_API void calls_placed(const struct calls_table *, const double *share_of_call, const double *part_of_row,
                             const int32_t *place, size_t size, int64_t *ns, double *room);

/* What a call needs at least, ns, NaN if unknown, and which share of it remains. */
struct calls_least {
    const double *least_ns, *remains;
};

/* Of each row sums over its pairs, ns: what remains of those that take longer than their least, their least, what
 * remains of those of which it is unknown, and what does not remain. */
struct calls_excess {
    double *took, *least, *unknown, *gone;
};

NATIVE_API void calls_sums(const struct calls_table *, const struct calls_least *, const struct calls_excess *,
                           double *room);

#endif
