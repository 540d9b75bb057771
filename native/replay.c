#include "replay.h"

#include <stdlib.h>

#define AT(column, i) ((column).at[(size_t)(i) * (column).step])

/* Far times are sums of "long ago": they wrap, as numpy's do. */
static int64_t plus(int64_t one, int64_t other) { return (int64_t)((uint64_t)one + (uint64_t)other); }

static int64_t later(int64_t one, int64_t other) { return one > other ? one : other; }

/* When what a row waits for has left the launch queue, or the event that it waits for is over. */
static int64_t left_queue(const struct replay_schedule *schedule, const struct replay_lengths *lengths,
                          const struct replay_played *played, int64_t row) {
    int64_t behind = AT(schedule->queue_row, row), left;
    if (AT(schedule->queue_before, row))
        left = played->begin_ns[AT(schedule->rank, row)];
    else if (behind >= 0)
        left = plus(played->done_ns[behind], (int64_t)(0 - (uint64_t)AT(lengths->queue_tail_ns, row)));
    else
        left = played->end_ns[AT(schedule->queue_part, row)];
    return plus(left, AT(lengths->queue_ns, row));
}

static void play_row(const struct replay_schedule *schedule, const struct replay_lengths *lengths,
                     const struct replay_played *played, int64_t is, int64_t row) {
    int32_t rank = AT(schedule->rank, row);
    int64_t issued = plus(played->host_at[rank], AT(lengths->work_ns, row)), free = played->device_at[rank], left = 0;
    int synced = 0;
    if (is & REPLAY_QUEUED) {
        synced = AT(schedule->synced, row);
        left = left_queue(schedule, lengths, played, row);
        if (!synced) issued = later(issued, left);
    }
    if (is & REPLAY_GATED)
        free = later(free, plus(played->end_ns[AT(schedule->awaits, row)], AT(schedule->delay_ns, row)));
    int64_t done = later(plus(free, AT(lengths->device_ns, row)), plus(issued, AT(lengths->lead_ns, row)));
    int64_t ended = issued;
    if (is & REPLAY_HELD)
        ended = later(issued, plus(AT(schedule->waits, row) ? done : issued, AT(lengths->blocked_ns, row)));
    if (synced) ended = later(ended, left);
    played->host_at[rank] = ended;
    played->device_at[rank] = played->done_ns[row] = done;
    if (played->issued_ns) {
        played->issued_ns[row] = issued;
        played->ended_ns[row] = ended;
    }
}

static void launch(const struct replay_schedule *schedule, const struct replay_played *played, int64_t is,
                   int64_t row) {
    int32_t part = AT(schedule->launches, row);
    if (part < 0) return;
    int64_t at = played->host_at[AT(schedule->rank, row)], needs = AT(schedule->needs, part);
    if (is & REPLAY_NEEDING && needs >= 0) at = later(at, played->done_ns[needs]);
    played->ready[part] = plus(at, AT(schedule->ready_ns, part));
}

/* The parts of collectives that complete together, one collective after the other. */
static void complete(const struct replay_schedule *schedule, const struct replay_lengths *lengths,
                     const struct replay_played *played, int64_t first, int64_t last) {
    for (int64_t part = first; part < last; part++) {
        int64_t before = plus(played->end_ns[AT(schedule->after, part)], AT(schedule->ready_ns, part));
        played->arrival_ns[part] = later(played->ready[part], before);
    }
    for (int64_t from = first, to; from < last; from = to) {
        int64_t arrived = played->arrival_ns[from];
        for (to = from + 1; to < last && AT(schedule->collective, to) == AT(schedule->collective, from); to++)
            arrived = later(arrived, played->arrival_ns[to]);
        for (int64_t part = from; part < to; part++)
            played->end_ns[part] =
                plus(lengths->alone ? played->arrival_ns[part] : arrived, AT(lengths->transfer_ns, part));
    }
}

void replay_play(const struct replay_schedule *schedule, const struct replay_lengths *lengths,
                 const struct replay_played *played) {
    for (size_t i = 0; i < schedule->count; i++) {
        struct replay_round now = schedule->rounds[i];
        for (int64_t row = now.row; row < now.last_row; row++) play_row(schedule, lengths, played, now.is, row);
        for (int64_t row = now.row; row < now.last_row; row++) launch(schedule, played, now.is, row);
        complete(schedule, lengths, played, now.part, now.last_part);
    }
}

static int by_index(const void *one, const void *other) {
    int32_t first = *(const int32_t *)one, second = *(const int32_t *)other;
    return (first > second) - (first < second);
}

/* Parts arrive whose launch and whose stream let them: the collectives that lack none complete, in their order. Returns
 * where the completed parts end. */
static int64_t arrive(const struct replay_tracks *tracks, const struct replay_ordering *now, size_t arriving,
                      int64_t complete) {
    size_t filled = 0;
    for (size_t i = 0; i < arriving; i++) now->missing[tracks->collective[now->arriving[i]]]--;
    for (size_t i = 0; i < arriving; i++) {
        int32_t collective = tracks->collective[now->arriving[i]];
        if (now->missing[collective] || now->full[collective]) continue;
        now->full[collective] = 1;
        now->filled[filled++] = collective;
    }
    qsort(now->filled, filled, sizeof *now->filled, by_index);
    for (size_t i = 0; i < filled; i++) {
        int32_t collective = now->filled[i];
        for (int64_t at = tracks->members_at[collective]; at < tracks->members_at[collective + 1]; at++) {
            now->done[tracks->members[at]] = 1;
            now->completed[complete++] = tracks->members[at];
        }
    }
    return complete;
}

int64_t replay_order(const struct replay_tracks *tracks, const struct replay_ordering *now) {
    int64_t played = 0, complete = 0, rounds = 0, rows = tracks->first[tracks->ranks];
    while (played < rows) {
        int64_t began = played;
        /* Nothing is over yet that another row of this round waits for: that is found out once all have been looked at. */
        for (int64_t rank = 0; rank < tracks->ranks; rank++) {
            int64_t row = now->place[rank];
            if (row == tracks->first[rank + 1]) continue;
            if (!now->done[AT(tracks->awaits, row)] || !now->done[AT(tracks->queue_part, row)]) continue;
            now->place[rank]++;
            now->order[played++] = row;
        }
        if (played == began) return -1;
        for (int64_t i = began; i < played; i++) {
            int32_t part = AT(tracks->launches, now->order[i]);
            if (part >= 0) now->queued[part] = 1;
        }
        size_t arriving = 0;
        for (int64_t i = began; i < played; i++) {
            int32_t part = AT(tracks->launches, now->order[i]);
            if (part >= 0 && now->done[tracks->after[part]]) now->arriving[arriving++] = part;
        }
        struct replay_together *together = &now->plan[rounds++];
        *together = (struct replay_together){began, played, complete, complete};
        while (arriving) {
            int64_t since = complete;
            complete = arrive(tracks, now, arriving, complete);
            if (complete > since) {
                if (together->last_part > together->part) {
                    together = &now->plan[rounds++];
                    *together = (struct replay_together){played, played, since, since};
                }
                together->last_part = complete;
            }
            arriving = 0;
            for (int64_t i = since; i < complete; i++) {
                int32_t part = tracks->following[now->completed[i]];
                if (part >= 0 && now->queued[part]) now->arriving[arriving++] = part;
            }
        }
    }
    return rounds;
}
