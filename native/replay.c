#include "replay.h"

#include <stdlib.h>

#include "rounding.h"

#define AT(column, i) ((column).at[(size_t)(i) * (column).step])

/* Far times are sums of "long ago": they wrap, as numpy's do. */
static int64_t plus(int64_t one, int64_t other) { return (int64_t)((uint64_t)one + (uint64_t)other); }

static int64_t later(int64_t one, int64_t other) { return one > other ? one : other; }

static int64_t minus(int64_t one, int64_t other) { return (int64_t)((uint64_t)one - (uint64_t)other); }

/* How long each of some rows that follow each other takes, counted from the first of them. */
struct row_lengths {
    struct replay_times work, blocked, device, lead, queue_tail, queue;
};

static struct replay_times from(struct replay_times column, int64_t row) {
    return (struct replay_times){column.at + (size_t)row * column.step, column.step};
}

static struct row_lengths recorded(const struct replay_lengths *lengths, int64_t row) {
    return (struct row_lengths){from(lengths->work_ns, row),       from(lengths->blocked_ns, row),
                                from(lengths->device_ns, row),     from(lengths->lead_ns, row),
                                from(lengths->queue_tail_ns, row), from(lengths->queue_ns, row)};
}

/* So many rows are shortened at once: what they take then stays in the nearest cache. */
enum { BLOCK = 256 };

/* Rows of a round, and what remains of them. */
struct block {
    int64_t row, count, is;
    size_t cell[BLOCK];
    int64_t work[BLOCK], blocked[BLOCK], device[BLOCK], lead[BLOCK], queue_tail[BLOCK], queue[BLOCK];
};

/* The kinds that something goes of, and how many of their working rows have been played. */
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
static const int64_t LONG_BEFORE = -((int64_t)1 << 60), NOTHING = 0;

static void shorten_work(struct block *of, const struct replay_cut *cut, struct cursor *cursor) {
    for (int i = 0; i < cursor->kinds; i++) {
        int kind = cursor->kind[i];
        const double *share = cut->share[kind];
        const int32_t *working = cut->working[kind];
        size_t at = cursor->at[i], count = cut->count[kind];
        for (; at < count && working[at] < of->row + of->count; at++) {
            int64_t mine = working[at] - of->row;
            if (mine < 0) continue;
            double gone = share[of->cell[mine]];
            if (gone != 0) of->work[mine] = minus(of->work[mine], nearest((double)cut->working_ns[kind][at] * gone));
        }
        cursor->at[i] = at;
    }
}

static void shorten_waits(struct block *of, const struct replay_schedule *schedule, const struct replay_cut *cut,
                          const struct row_lengths *as_recorded) {
    for (int64_t i = 0; i < of->count; i++) {
        int64_t row = of->row + i, work = AT(as_recorded->work, i);
        int32_t by = AT(schedule->blocked_by, row);
        int synced = AT(schedule->synced, row);
        double gone = by >= 0 && by < REPLAY_KINDS && cut->share[by] ? cut->share[by][of->cell[i]] : 0;
        if (gone >= 1) {
            /* A call that is gone waits for nothing: far earlier than the device. */
            of->blocked[i] = AT(schedule->waits, row) ? LONG_BEFORE : 0;
            if (synced) of->queue[i] = LONG_BEFORE;
        } else if (gone != 0) {
            of->blocked[i] = whole((double)of->blocked[i] * (1 - gone));
        }
        /* What a row needs longer than the queue that blocked it is work after that, and goes as its work goes. */
        if (of->queue[i] > 0 && !synced && of->work[i] < work)
            of->queue[i] = nearest((double)of->queue[i] * ((double)of->work[i] / (double)work));
    }
}

static void shorten_device(struct block *of, const struct replay_schedule *schedule,
                           const struct replay_lengths *lengths, const struct replay_cut *cut,
                           const struct row_lengths *as_recorded) {
    for (int64_t i = 0; i < of->count; i++) {
        int64_t whole_ns = AT(as_recorded->device, i), need = needed(cut, of->cell[i], of->row + i, whole_ns);
        of->lead[i] = minus(AT(as_recorded->lead, i), minus(whole_ns, need));
        of->device[i] = need;
    }
    if (!(of->is & REPLAY_QUEUED)) return;
    for (int64_t i = 0; i < of->count; i++) {
        int64_t behind = AT(schedule->queue_row, of->row + i);
        if (behind < 0) continue;
        int64_t all = AT(lengths->device_ns, behind);
        int64_t need = needed(cut, cell_of(schedule, cut, behind), behind, all);
        of->queue_tail[i] = nearest((double)of->queue_tail[i] * ((double)need / (double)later(all, 1)));
    }
}

/* Copies a column that is to be changed. */
static struct replay_times copied(int64_t *to, struct replay_times column, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = AT(column, i);
    return (struct replay_times){to, 1};
}

/* What remains of the rows of a block. */
static struct row_lengths shortened(struct block *of, const struct replay_schedule *schedule,
                                    const struct replay_lengths *lengths, const struct replay_cut *cut,
                                    struct cursor *cursor) {
    const struct row_lengths as_recorded = recorded(lengths, of->row);
    struct row_lengths takes = as_recorded;
    for (int64_t i = 0; i < of->count; i++) of->cell[i] = cell_of(schedule, cut, of->row + i);
    if (cut->no_host) {
        takes.work = (struct replay_times){&NOTHING, 0};
        takes.queue = (struct replay_times){&LONG_BEFORE, 0};
        takes.blocked = (struct replay_times){of->blocked, 1};
        for (int64_t i = 0; i < of->count; i++) of->blocked[i] = AT(schedule->waits, of->row + i) ? LONG_BEFORE : 0;
    } else if (cursor->kinds) {
        takes.work = copied(of->work, takes.work, of->count);
        shorten_work(of, cut, cursor);
        if (of->is & (REPLAY_BLOCKED | REPLAY_QUEUED)) {
            takes.blocked = copied(of->blocked, takes.blocked, of->count);
            takes.queue = copied(of->queue, takes.queue, of->count);
            shorten_waits(of, schedule, cut, &as_recorded);
        }
    }
    if (cut->device_ns || cut->gone_ns) {
        takes.queue_tail = copied(of->queue_tail, takes.queue_tail, of->is & REPLAY_QUEUED ? of->count : 0);
        shorten_device(of, schedule, lengths, cut, &as_recorded);
        takes.device = (struct replay_times){of->device, 1};
        takes.lead = (struct replay_times){of->lead, 1};
    }
    return takes;
}

/* When what a row waits for has left the launch queue, or the event that it waits for is over. */
static int64_t left_queue(const struct replay_schedule *schedule, const struct row_lengths *takes,
                          const struct replay_played *played, int64_t row, int64_t i) {
    int64_t behind = AT(schedule->queue_row, row), left;
    if (AT(schedule->queue_before, row))
        left = played->begin_ns[AT(schedule->rank, row)];
    else if (behind >= 0)
        left = minus(played->done_ns[behind], AT(takes->queue_tail, i));
    else
        left = played->end_ns[AT(schedule->queue_part, row)];
    return plus(left, AT(takes->queue, i));
}

/* Plays some rows of a round, of which each is of another rank. */
SPECIALISED void play_loop(const struct replay_schedule *schedule, const struct row_lengths takes,
                           const struct replay_played *played, int64_t is, int64_t first, int64_t count) {
    int64_t *restrict host_at = played->host_at, *restrict device_at = played->device_at;
    int64_t *done_ns = played->done_ns;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = first + i;
        int32_t rank = AT(schedule->rank, row);
        int64_t issued = plus(host_at[rank], AT(takes.work, i)), free = device_at[rank], left = 0;
        int synced = 0;
        if (is & REPLAY_QUEUED) {
            synced = AT(schedule->synced, row);
            left = left_queue(schedule, &takes, played, row, i);
            if (!synced) issued = later(issued, left);
        }
        if (is & REPLAY_GATED)
            free = later(free, plus(played->end_ns[AT(schedule->awaits, row)], AT(schedule->delay_ns, row)));
        int64_t done = later(plus(free, AT(takes.device, i)), plus(issued, AT(takes.lead, i)));
        int64_t ended = issued;
        if (is & REPLAY_BLOCKED)
            ended = later(issued, plus(AT(schedule->waits, row) ? done : issued, AT(takes.blocked, i)));
        if (synced) ended = later(ended, left);
        host_at[rank] = ended;
        device_at[rank] = done_ns[row] = done;
        if (played->issued_ns) {
            played->issued_ns[row] = issued;
            played->ended_ns[row] = ended;
        }
    }
}

/* The same, in a loop that does only what rows of such a round do. */
static void play_rows(const struct replay_schedule *schedule, const struct row_lengths takes,
                      const struct replay_played *played, int64_t is, int64_t first, int64_t count) {
    switch (is & ~(int64_t)REPLAY_NEEDING) {
    case 0:
        play_loop(schedule, takes, played, 0, first, count);
        break;
    case REPLAY_GATED:
        play_loop(schedule, takes, played, REPLAY_GATED, first, count);
        break;
    case REPLAY_BLOCKED:
        play_loop(schedule, takes, played, REPLAY_BLOCKED, first, count);
        break;
    case REPLAY_GATED | REPLAY_BLOCKED:
        play_loop(schedule, takes, played, REPLAY_GATED | REPLAY_BLOCKED, first, count);
        break;
    default:
        play_loop(schedule, takes, played, is, first, count);
    }
}

/* The parts that rows of a round launch. */
SPECIALISED void launch(const struct replay_schedule *schedule, const struct replay_played *played, int needing,
                        int64_t first, int64_t last) {
    int64_t *restrict ready = played->ready;
    const int64_t *host_at = played->host_at, *done_ns = played->done_ns;
    const struct replay_indices launches = schedule->launches, ranks = schedule->rank, needed_rows = schedule->needs;
    const struct replay_times ready_ns = schedule->ready_ns;
    for (int64_t row = first; row < last; row++) {
        int32_t part = AT(launches, row);
        if (part < 0) continue;
        int64_t at = host_at[AT(ranks, row)];
        if (needing) {
            int64_t needs = AT(needed_rows, part);
            if (needs >= 0) at = later(at, done_ns[needs]);
        }
        ready[part] = plus(at, AT(ready_ns, part));
    }
}

/* The parts of collectives that complete together, one collective after the other. */
static void complete(const struct replay_schedule *schedule, const struct replay_lengths *lengths,
                     const struct replay_played *played, int64_t first, int64_t last) {
    int64_t *restrict arrival_ns = played->arrival_ns, *restrict end_ns = played->end_ns;
    const int64_t *restrict ready = played->ready;
    const struct replay_indices after = schedule->after, collective = schedule->collective;
    const struct replay_times ready_ns = schedule->ready_ns, transfer_ns = lengths->transfer_ns;
    for (int64_t part = first; part < last; part++)
        arrival_ns[part] = later(ready[part], plus(end_ns[AT(after, part)], AT(ready_ns, part)));
    if (lengths->alone) {
        for (int64_t part = first; part < last; part++) end_ns[part] = plus(arrival_ns[part], AT(transfer_ns, part));
        return;
    }
    for (int64_t from = first, to; from < last; from = to) {
        int64_t arrived = arrival_ns[from];
        for (to = from + 1; to < last && AT(collective, to) == AT(collective, from); to++)
            arrived = later(arrived, arrival_ns[to]);
        for (int64_t part = from; part < to; part++) end_ns[part] = plus(arrived, AT(transfer_ns, part));
    }
}

static void play_round(const struct replay_schedule *schedule, const struct replay_lengths *lengths,
                       const struct replay_cut *cut, struct cursor *cursor, const struct replay_played *played,
                       struct replay_round now) {
    struct block block;
    block.is = now.is;
    for (int64_t row = now.row; row < now.last_row; row += BLOCK) {
        block.row = row;
        block.count = now.last_row - row < BLOCK ? now.last_row - row : BLOCK;
        const struct row_lengths takes =
            cut ? shortened(&block, schedule, lengths, cut, cursor) : recorded(lengths, row);
        play_rows(schedule, takes, played, now.is, row, block.count);
    }
    if (now.is & REPLAY_NEEDING)
        launch(schedule, played, 1, now.row, now.last_row);
    else
        launch(schedule, played, 0, now.row, now.last_row);
    complete(schedule, lengths, played, now.part, now.last_part);
}

void replay_play(const struct replay_schedule *schedule, const struct replay_lengths *lengths,
                 const struct replay_cut *cut, const struct replay_played *played) {
    struct cursor cursor = {{0}, 0, {0}};
    if (cut) cursor = first_of(cut);
    for (size_t i = 0; i < schedule->count; i++)
        play_round(schedule, lengths, cut, &cursor, played, schedule->rounds[i]);
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
