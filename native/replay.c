#include "replay.h"

#include <stdlib.h>

#include "rounding.h"

#define AT(column, i) ((column).at[(size_t)(i) * (column).step])

/* Far times are sums of "long ago": they wrap, as numpy's do. */
static int64_t plus(int64_t one, int64_t other) { return (int64_t)((uint64_t)one + (uint64_t)other); }

static int64_t later(int64_t one, int64_t other) { return one > other ? one : other; }

static int64_t minus(int64_t one, int64_t other) { return (int64_t)((uint64_t)one - (uint64_t)other); }

/* How long a row takes. */
struct row_lengths {
    int64_t work, blocked, device, lead, queue_tail, queue;
};

static inline struct row_lengths recorded(const struct replay_lengths *lengths, int64_t is, int64_t row) {
    struct row_lengths of = {AT(lengths->work_ns, row), 0, AT(lengths->device_ns, row), AT(lengths->lead_ns, row), 0, 0};
    if (is & REPLAY_BLOCKED) of.blocked = AT(lengths->blocked_ns, row);
    if (is & REPLAY_QUEUED) {
        of.queue_tail = AT(lengths->queue_tail_ns, row);
        of.queue = AT(lengths->queue_ns, row);
    }
    return of;
}

/* The kinds that something goes of, and how far their working rows have been played. */
struct cursor {
    int kind[REPLAY_KINDS], kinds;
    size_t at[REPLAY_KINDS];
};

static struct cursor first_of(const struct replay_cut *cut) {
    struct cursor cursor = {{0}, 0, {0}};
    for (int kind = 0; kind < REPLAY_KINDS; kind++)
        if (cut->share[kind]) cursor.kind[cursor.kinds++] = kind;
    return cursor;
}

static size_t cell_of(const struct replay_schedule *schedule, const struct replay_cut *cut, int64_t row) {
    int64_t step = AT(schedule->step, row);
    return (size_t)((step >= 0 ? step : cut->steps) * cut->ranks + AT(schedule->rank, row));
}

/* What the device needs for a row. Of a row that is shorter than recorded, less goes, in proportion. */
static int64_t needed(const struct replay_cut *cut, size_t cell, int64_t row, int64_t as_recorded) {
    int64_t need = cut->device_ns && (!cut->chosen || cut->chosen[cell]) ? cut->device_ns[row] : as_recorded;
    int64_t gone = cut->gone_ns ? cut->gone_ns[row] : 0;
    if (gone && need != as_recorded) {
        double remains = (double)need / (double)later(as_recorded, 1);
        gone = nearest((double)gone * (remains < 1 ? remains : 1));
    }
    return minus(need, later(gone < need ? gone : need, 0));
}

/* Far sooner than anything else. */
static const int64_t LONG_BEFORE = -((int64_t)1 << 60);

static void shorten_host(struct row_lengths *of, const struct replay_schedule *schedule, const struct replay_cut *cut,
                         struct cursor *cursor, size_t cell, int64_t row) {
    int64_t work = of->work;
    int synced = AT(schedule->synced, row);
    for (int i = 0; i < cursor->kinds; i++) {
        int kind = cursor->kind[i];
        size_t at = cursor->at[i];
        double gone = cut->share[kind][cell];
        if (gone == 0) continue;
        while (at < cut->count[kind] && cut->working[kind][at] < row) at++;
        if (at < cut->count[kind] && cut->working[kind][at] == row)
            of->work = minus(of->work, nearest((double)cut->working_ns[kind][at++] * gone));
        cursor->at[i] = at;
    }
    int32_t by = AT(schedule->blocked_by, row);
    double gone = by >= 0 && by < REPLAY_KINDS && cut->share[by] ? cut->share[by][cell] : 0;
    if (gone >= 1) {
        /* A call that is gone waits for nothing: far earlier than the device. */
        of->blocked = AT(schedule->waits, row) ? LONG_BEFORE : 0;
        if (synced) of->queue = LONG_BEFORE;
    } else if (gone != 0) {
        of->blocked = whole((double)of->blocked * (1 - gone));
    }
    /* What a row needs longer than the queue that blocked it is work after that, and goes as its work goes. */
    if (of->queue > 0 && !synced && of->work < work)
        of->queue = nearest((double)of->queue * ((double)of->work / (double)work));
}

static inline struct row_lengths shortened(const struct replay_schedule *schedule, const struct replay_lengths *lengths,
                                    const struct replay_cut *cut, struct cursor *cursor, int64_t is, int64_t row) {
    struct row_lengths of = recorded(lengths, is, row);
    size_t cell = cell_of(schedule, cut, row);
    if (cut->no_host) {
        of.work = 0;
        of.blocked = AT(schedule->waits, row) ? LONG_BEFORE : 0;
        of.queue = LONG_BEFORE;
    } else if (cursor->kinds) {
        shorten_host(&of, schedule, cut, cursor, cell, row);
    }
    if (!cut->device_ns && !cut->gone_ns) return of;
    int64_t need = needed(cut, cell, row, of.device), behind = AT(schedule->queue_row, row);
    of.lead = minus(of.lead, minus(of.device, need));
    of.device = need;
    if (is & REPLAY_QUEUED && behind >= 0) {
        int64_t all = AT(lengths->device_ns, behind);
        need = needed(cut, cell_of(schedule, cut, behind), behind, all);
        of.queue_tail = nearest((double)of.queue_tail * ((double)need / (double)later(all, 1)));
    }
    return of;
}

/* When what a row waits for has left the launch queue, or the event that it waits for is over. */
static int64_t left_queue(const struct replay_schedule *schedule, const struct row_lengths *of,
                          const struct replay_played *played, int64_t row) {
    int64_t behind = AT(schedule->queue_row, row), left;
    if (AT(schedule->queue_before, row))
        left = played->begin_ns[AT(schedule->rank, row)];
    else if (behind >= 0)
        left = minus(played->done_ns[behind], of->queue_tail);
    else
        left = played->end_ns[AT(schedule->queue_part, row)];
    return plus(left, of->queue);
}

static void play_row(const struct replay_schedule *schedule, const struct row_lengths *of,
                     const struct replay_played *played, int64_t is, int64_t row) {
    int32_t rank = AT(schedule->rank, row);
    int64_t issued = plus(played->host_at[rank], of->work), free = played->device_at[rank], left = 0;
    int synced = 0;
    if (is & REPLAY_QUEUED) {
        synced = AT(schedule->synced, row);
        left = left_queue(schedule, of, played, row);
        if (!synced) issued = later(issued, left);
    }
    if (is & REPLAY_GATED)
        free = later(free, plus(played->end_ns[AT(schedule->awaits, row)], AT(schedule->delay_ns, row)));
    int64_t done = later(plus(free, of->device), plus(issued, of->lead));
    int64_t ended = issued;
    if (is & REPLAY_BLOCKED) ended = later(issued, plus(AT(schedule->waits, row) ? done : issued, of->blocked));
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
                 const struct replay_cut *cut, const struct replay_played *played) {
    struct cursor cursor = {{0}, 0, {0}};
    if (cut) cursor = first_of(cut);
    for (size_t i = 0; i < schedule->count; i++) {
        struct replay_round now = schedule->rounds[i];
        for (int64_t row = now.row; row < now.last_row; row++) {
            struct row_lengths of = cut ? shortened(schedule, lengths, cut, &cursor, now.is, row)
                                        : recorded(lengths, now.is, row);
            play_row(schedule, &of, played, now.is, row);
        }
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
                for (int32_t part = tracks->following[now->completed[i]]; part >= 0; part = tracks->beside[part])
                    if (now->queued[part]) now->arriving[arriving++] = part;
            }
        }
    }
    return rounds;
}
