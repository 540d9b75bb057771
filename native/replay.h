/* Orders the rows and parts of a schedule, and plays it. `tb_ddp_doctor/replay/native_library.py` has the same
 * declarations; `replay/order.py`, `replay.py` and `play.py` say what each column means and do the same. Every index is
 * in range: the caller has looked. */
#ifndef REPLAY_H
#define REPLAY_H

#include <stddef.h>
#include <stdint.h>

#include "api.h"

/* A column; `step` is 0 where all things have one value, and 1 elsewhere. */
struct replay_times {
    const int64_t *at;
    size_t step;
};
struct replay_indices {
    const int32_t *at;
    size_t step;
};
struct replay_flags {
    const uint8_t *at;
    size_t step;
};

/* How many kinds of host time there are. */
enum { REPLAY_KINDS = 11 };

enum { REPLAY_GATED = 1, REPLAY_QUEUED = 2, REPLAY_BLOCKED = 4, REPLAY_NEEDING = 8 };

struct replay_round {
    int64_t row, last_row;
    int64_t part, last_part;
    int64_t is;
};

struct replay_schedule {
    const struct replay_round *rounds;
    size_t count;
    /* Of rows. */
    struct replay_indices rank, step, blocked_by, queue_row, queue_part, awaits, launches;
    struct replay_flags waits, queue_before, synced;
    struct replay_times delay_ns;
    /* Of parts. */
    struct replay_indices collective, after, needs;
    struct replay_times ready_ns;
};

struct replay_lengths {
    /* Of rows; the last of parts. */
    struct replay_times work_ns, blocked_ns, device_ns, lead_ns, queue_tail_ns, queue_ns, transfer_ns;
    /* Whether nobody waits for other ranks. */
    int64_t alone;
};

/* What goes of the lengths of rows, by cell: each step has a cell for each rank, since ranks are played side by side,
 * and last come those of the steps that the job leaves out. */
struct replay_cut {
    /* Of each kind: the share of cells that goes, null for none; the rows that work so, ascending, and how long. */
    const double *share[REPLAY_KINDS];
    const int32_t *working[REPLAY_KINDS];
    const int64_t *working_ns[REPLAY_KINDS];
    size_t count[REPLAY_KINDS];
    /* What the device needs instead for the rows of chosen cells, or of all cells where that is null; null for what it
     * needs as recorded. */
    const int64_t *device_ns;
    const uint8_t *chosen;
    /* What goes of that, of each row; null for nothing. */
    const int64_t *gone_ns;
    int64_t steps, ranks;
    /* Whether hosts need no time at all. */
    int64_t no_host;
};

struct replay_played {
    /* Of ranks. */
    const int64_t *begin_ns;
    int64_t *host_at, *device_at;
    /* Of rows; the last two may be null. */
    int64_t *done_ns, *issued_ns, *ended_ns;
    /* Of parts: when each could start by its own launch, when its rank arrives, and when it ends. */
    int64_t *ready, *arrival_ns, *end_ns;
};

struct replay_tracks {
    /* Where the rows of each rank begin, and where the last one's end. */
    const int64_t *first;
    int64_t ranks;
    /* Of rows. */
    struct replay_indices awaits, queue_part, launches;
    /* Of parts: the collective; the part that each comes after; the first one that comes after it, and the next one
     * that comes after the same part, or -1. */
    const int32_t *collective, *after, *following, *beside;
    /* The parts of each collective together, and where its begin. */
    const int32_t *members;
    const int64_t *members_at;
};

struct replay_together {
    int64_t row, last_row;
    int64_t part, last_part;
};

struct replay_ordering {
    /* The next row of each rank; of parts, whether they are over and whether they are launched; how many parts each
     * collective still lacks, and whether it is full. */
    int64_t *place;
    uint8_t *done, *queued;
    int64_t *missing;
    uint8_t *full;
    /* Lists, of as many parts as there are, and of collectives. */
    int32_t *arriving, *filled;
    /* The order of rows, and of the parts that complete; what is played together. */
    int64_t *order, *completed;
    struct replay_together *plan;
};

/* How many are played together one after the other; -1 if rows wait for each other in a circle. */
NATIVE_API int64_t replay_order(const struct replay_tracks *, const struct replay_ordering *);

/* Where there is a cut, the lengths are those as recorded. */
NATIVE_API void replay_play(const struct replay_schedule *, const struct replay_lengths *, const struct replay_cut *,
                            const struct replay_played *);

#endif
