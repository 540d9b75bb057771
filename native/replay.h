/* Plays a schedule. `tb_ddp_doctor/facts/native_play.py` has the same declarations, and `facts/play.py` says what each
 * column means and does the same. Every index is in range: the caller has looked. */
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

enum { REPLAY_GATED = 1, REPLAY_QUEUED = 2, REPLAY_HELD = 4, REPLAY_NEEDING = 8 };

struct replay_round {
    int64_t row, last_row;
    int64_t part, last_part;
    int64_t is;
};

struct replay_schedule {
    const struct replay_round *rounds;
    size_t count;
    /* Of rows. */
    struct replay_indices rank, queue_row, queue_part, awaits, launches;
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

struct replay_played {
    /* Of ranks. */
    const int64_t *begin_ns;
    int64_t *host_at, *device_at;
    /* Of rows; the last two may be null. */
    int64_t *done_ns, *issued_ns, *ended_ns;
    /* Of parts: when each could start by its own launch, when its rank arrives, and when it ends. */
    int64_t *ready, *arrival_ns, *end_ns;
};

NATIVE_API void replay_play(const struct replay_schedule *, const struct replay_lengths *, const struct replay_played *);

#endif
