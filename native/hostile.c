/* Runs the passes that the fuzzer leaves out over columns of any numbers: what a digest's or a trace's columns may be.
 * Indices of the replay lie where `native_order.py` and `native_play.py` have looked, and point anywhere there.
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

#include "calls.h"
#include "columns.h"
#include "intervals.h"
#include "nesting.h"
#include "replay.h"

enum { LONGEST = 64, LAYERS = 4 };

static uint64_t state = 88172645463325252u;

/* How much was played of the replay. */
static int64_t played_rounds;

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

/* As many cells as `long_gaps` makes: from the first instant to the last. */
static void cells(void) {
    const size_t count = 1 + any() % LONGEST;
    int64_t *instant = instants(count, count, false), first = INT64_MAX, last = INT64_MIN;
    for (size_t i = 0; i < count; i++) {
        first = instant[i] < first ? instant[i] : first, last = instant[i] > last ? instant[i] : last;
    }
    const uint64_t range = (uint64_t)last - (uint64_t)first;
    int bits = 0;
    while (range >> bits >= LONGEST) {
        bits++;
    }
    const size_t room_for = (size_t)(range >> bits) + 1;
    int64_t *least = room(room_for, sizeof *least), *most = room(room_for, sizeof *most);
    for (size_t i = 0; i < room_for; i++) {
        least[i] = INT64_MAX, most[i] = INT64_MIN;
    }
    intervals_cells(count, instant, first, bits, least, most);
    require(least[0] == first && most[room_for - 1] == last);
    free(instant), free(least), free(most);
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

/* Indices from the least one on, below `most`. */
static int32_t *indices(size_t count, int32_t least, size_t most) {
    int32_t *column = room(count, sizeof *column);
    for (size_t i = 0; i < count; i++) {
        column[i] = least + (int32_t)(any() % (most + (size_t)-least));
    }
    return column;
}

/* A column of one value for all, or of as many as it has. */
#define COLUMN(kind, made) ((struct kind){(made), any() & 1})

struct job {
    size_t ranks, rows, parts, collectives;
    int64_t *first;
    int32_t *awaits, *queue_part, *launches, *collective, *after;
    struct replay_tracks tracks;
};

/* What comes of the columns, as `order.Ordering.of` makes it. */
static struct replay_ordering begun(struct job *job) {
    struct replay_ordering now;
    const size_t rows = job->rows, parts = job->parts, collectives = job->collectives;
    int32_t *following = room(parts, sizeof *following), *beside = room(parts, sizeof *beside);
    int32_t *members = room(parts, sizeof *members);
    int64_t *members_at = room(collectives + 1, sizeof *members_at);
    bool *launched = room(parts, sizeof *launched);
    size_t count = 0;
    now.place = room(job->ranks, sizeof *now.place), now.missing = room(collectives, sizeof *now.missing);
    now.done = room(parts, 1), now.queued = room(parts, 1), now.full = room(collectives, 1);
    now.arriving = room(parts > job->ranks ? parts : job->ranks, sizeof *now.arriving);
    now.filled = room(collectives, sizeof *now.filled);
    now.order = room(rows, sizeof *now.order), now.completed = room(parts, sizeof *now.completed);
    now.plan = room(rows + collectives, sizeof *now.plan);
    for (size_t row = 0; row < rows; row++) {
        const int32_t part = job->tracks.launches.at[row * job->tracks.launches.step];
        if (part >= 0) {
            launched[part] = true;
        }
    }
    for (size_t part = 0; part < parts; part++) {
        now.done[part] = !launched[part];
        following[part] = beside[part] = -1;
    }
    for (size_t part = parts; part-- > 0;) {
        const int32_t before = job->after[part];
        if (launched[part] && launched[before]) {
            beside[part] = following[before], following[before] = (int32_t)part;
        }
    }
    for (size_t collective = 0; collective < collectives; collective++) {
        members_at[collective] = (int64_t)count;
        for (size_t part = 0; part < parts; part++) {
            if (launched[part] && job->collective[part] == (int32_t)collective) {
                members[count++] = (int32_t)part, now.missing[collective]++;
            }
        }
    }
    members_at[collectives] = (int64_t)count;
    for (size_t rank = 0; rank < job->ranks; rank++) {
        now.place[rank] = job->first[rank];
    }
    job->tracks.following = following, job->tracks.beside = beside;
    job->tracks.members = members, job->tracks.members_at = members_at;
    free(launched);
    return now;
}

/* Rows come once at most, as do parts; what is played together follows what was before. */
static void check_order(const struct job *job, const struct replay_ordering *now, int64_t rounds) {
    uint8_t *row_seen = room(job->rows, 1), *part_seen = room(job->parts, 1);
    int64_t row = 0, part = 0;
    for (int64_t round = 0; round < rounds; round++) {
        const struct replay_together *one = &now->plan[round];
        require(one->row == row && one->last_row >= row && one->last_row <= (int64_t)job->rows);
        require(one->part == part && one->last_part >= part && one->last_part <= (int64_t)job->parts);
        for (; row < one->last_row; row++) {
            require(!row_seen[now->order[row]]++);
        }
        for (; part < one->last_part; part++) {
            require(!part_seen[now->completed[part]]++);
        }
    }
    require(row == (int64_t)job->rows);
    free(row_seen), free(part_seen);
}

/* Shares of what goes: none, some, all, and what is none. */
static double *shares(size_t count) {
    static const double kinds[] = {0, 0.25, 1, 2, -1, 1e300, -1e300, 0.0 / 0.0, 1.0 / 0.0};
    double *column = room(count, sizeof *column);
    for (size_t i = 0; i < count; i++) {
        column[i] = kinds[any() % (sizeof kinds / sizeof *kinds)];
    }
    return column;
}

static struct replay_cut cut(size_t rows, size_t ranks, size_t steps) {
    struct replay_cut found = {{0}, {0}, {0}, {0}, 0, 0, 0, (int64_t)steps, (int64_t)ranks, any() % 8 == 0};
    for (int kind = 0; kind < REPLAY_KINDS; kind++) {
        if (any() & 1) {
            const size_t working = any() % (rows + 1);
            found.share[kind] = shares(ranks * (steps + 1)), found.count[kind] = working;
            found.working[kind] = indices(working, 0, rows), found.working_ns[kind] = instants(working, working, false);
        }
    }
    if (any() & 1) {
        found.device_ns = instants(rows, rows, false);
        found.chosen = any() & 1 ? flags(ranks * (steps + 1)) : NULL;
    }
    if (any() & 1) found.gone_ns = instants(rows, rows, false);
    return found;
}

static void play(const struct job *job, const struct replay_ordering *now, int64_t rounds) {
    const size_t ranks = job->ranks, rows = job->rows, parts = job->parts, steps = any() % 4;
    struct replay_round *plan = room((size_t)rounds, sizeof *plan);
    for (int64_t round = 0; round < rounds; round++) {
        const struct replay_together *one = &now->plan[round];
        plan[round] = (struct replay_round){one->row, one->last_row, one->part, one->last_part, (int64_t)(any() & 15)};
    }
    int32_t *of_rows[] = {indices(rows, 0, ranks), indices(rows, -1, steps), indices(rows, -100, 100),
                          indices(rows, -1, rows), indices(rows, 0, parts),  indices(rows, 0, parts),
                          indices(rows, -1, parts)};
    int32_t *of_parts[] = {indices(parts, -100, 100), indices(parts, 0, parts), indices(parts, -1, rows)};
    uint8_t *marks[] = {flags(rows), flags(rows), flags(rows)};
    int64_t *times[9], *state[9];
    for (int i = 0; i < 9; i++) {
        times[i] = instants(i < 7 ? rows : parts, i < 7 ? rows : parts, false);
        const size_t count = i < 3 ? ranks : i < 6 ? rows : parts;
        state[i] = instants(count, count, false);
    }
    const bool kept = any() & 1, is_cut = any() & 1;
    const struct replay_schedule schedule = {
        plan, (size_t)rounds,
        COLUMN(replay_indices, of_rows[0]), COLUMN(replay_indices, of_rows[1]), COLUMN(replay_indices, of_rows[2]),
        COLUMN(replay_indices, of_rows[3]), COLUMN(replay_indices, of_rows[4]), COLUMN(replay_indices, of_rows[5]),
        COLUMN(replay_indices, of_rows[6]),
        COLUMN(replay_flags, marks[0]), COLUMN(replay_flags, marks[1]), COLUMN(replay_flags, marks[2]),
        COLUMN(replay_times, times[0]),
        COLUMN(replay_indices, of_parts[0]), COLUMN(replay_indices, of_parts[1]), COLUMN(replay_indices, of_parts[2]),
        COLUMN(replay_times, times[7]),
    };
    const struct replay_lengths lengths = {
        COLUMN(replay_times, times[1]), COLUMN(replay_times, times[2]), COLUMN(replay_times, times[3]),
        COLUMN(replay_times, times[4]), COLUMN(replay_times, times[5]), COLUMN(replay_times, times[6]),
        COLUMN(replay_times, times[8]), (int64_t)(any() & 1),
    };
    const struct replay_played played = {state[0], state[1], state[2], state[3], kept ? state[4] : NULL,
                                         kept ? state[5] : NULL, state[6], state[7], state[8]};
    const struct replay_cut gone = cut(rows, ranks, steps);
    replay_play(&schedule, &lengths, is_cut ? &gone : NULL, &played);
    for (int kind = 0; kind < REPLAY_KINDS; kind++) {
        free((void *)gone.share[kind]), free((void *)gone.working[kind]), free((void *)gone.working_ns[kind]);
    }
    free((void *)gone.device_ns), free((void *)gone.chosen), free((void *)gone.gone_ns), free(plan);
    for (int i = 0; i < 9; i++) {
        free(times[i]), free(state[i]);
    }
    for (int i = 0; i < 7; i++) {
        free(of_rows[i]);
    }
    for (int i = 0; i < 3; i++) {
        free(of_parts[i]), free(marks[i]);
    }
}

/* Any numbers, as many as there are: shares of calls and of rows, and times. */
static double *amounts(size_t count) {
    double *column = room(count, sizeof *column);
    for (size_t i = 0; i < count; i++) column[i] = (double)instant();
    return column;
}

static void calls(void) {
    enum { RANKS = 3 };
    int64_t rows[RANKS + 1] = {0}, counts[RANKS + 1] = {0}, pairs[RANKS];
    int32_t *call[RANKS];
    int64_t *count[RANKS], *ns[RANKS];
    size_t size = 1;
    for (int rank = 0; rank < RANKS; rank++) {
        rows[rank + 1] = rows[rank] + (int64_t)(any() % 5), counts[rank + 1] = counts[rank] + 1 + (int64_t)(any() % 4);
        pairs[rank] = (int64_t)(any() % 8);
        const size_t mine = (size_t)pairs[rank];
        call[rank] = indices(mine, 0, (size_t)(counts[rank + 1] - counts[rank]));
        count[rank] = instants(mine, mine, false), ns[rank] = instants(mine, mine, false);
        if (size < mine + 1) size = mine + 1;
    }
    const size_t all = (size_t)rows[RANKS], every = (size_t)counts[RANKS];
    int32_t *first = room(all, sizeof *first), *end = room(all, sizeof *end);
    for (int rank = 0; rank < RANKS; rank++) {
        for (int64_t row = rows[rank]; row < rows[rank + 1]; row++) {
            first[row] = (int32_t)(any() % (uint64_t)(pairs[rank] + 1));
            end[row] = (int32_t)(any() % (uint64_t)(pairs[rank] + 1));
        }
    }
    double *running = room(4 * size, sizeof *running), *least = amounts(every), *remains = amounts(every);
    double *of_rows[] = {amounts(all), amounts(all), amounts(all), amounts(all)};
    const struct calls_table table = {RANKS, rows, counts, pairs, (const int32_t *const *)call,
                                      (const int64_t *const *)count, (const int64_t *const *)ns, first, end, size};
    const struct calls_least known = {least, remains};
    int32_t *places = indices(all, -1, all + 1);
    int64_t *placed = instants(all, all, false);
    calls_share(&table, remains, of_rows[0], running);
    calls_placed(&table, remains, of_rows[0], places, all, placed, running);
    calls_sums(&table, &known, &(struct calls_excess){of_rows[0], of_rows[1], of_rows[2], of_rows[3]}, running);
    for (int rank = 0; rank < RANKS; rank++) free(call[rank]), free(count[rank]), free(ns[rank]);
    for (int i = 0; i < 4; i++) free(of_rows[i]);
    free(first), free(end), free(running), free(least), free(remains), free(places), free(placed);
}

static void replay(void) {
    struct job job = {1 + any() % 4, 0, 1 + any() % LONGEST, 1 + any() % 9, NULL, NULL, NULL, NULL, NULL, NULL, {0}};
    job.first = room(job.ranks + 1, sizeof *job.first);
    for (size_t rank = 0; rank < job.ranks; rank++) {
        job.first[rank + 1] = job.first[rank] + (int64_t)(any() % 12);
    }
    job.rows = (size_t)job.first[job.ranks];
    job.awaits = indices(job.rows, 0, job.parts), job.queue_part = indices(job.rows, 0, job.parts);
    job.launches = indices(job.rows, -1, job.parts);
    job.collective = indices(job.parts, 0, job.collectives), job.after = indices(job.parts, 0, job.parts);
    /* As a rule rows await what nothing launches, so that they can be played. */
    for (size_t row = 0; row < job.rows && any() % 4; row++) {
        job.awaits[row] = job.queue_part[row] = (int32_t)job.parts - 1;
        job.launches[row] = job.launches[row] == (int32_t)job.parts - 1 ? -1 : job.launches[row];
    }
    job.tracks = (struct replay_tracks){
        job.first, (int64_t)job.ranks,
        COLUMN(replay_indices, job.awaits), COLUMN(replay_indices, job.queue_part), COLUMN(replay_indices, job.launches),
        job.collective, job.after, NULL, NULL, NULL, NULL,
    };
    struct replay_ordering now = begun(&job);
    const int64_t rounds = replay_order(&job.tracks, &now);
    if (rounds >= 0) {
        check_order(&job, &now, rounds);
        play(&job, &now, rounds);
        played_rounds += rounds;
    }
    free(job.first), free(job.awaits), free(job.queue_part), free(job.launches), free(job.collective), free(job.after);
    free((void *)job.tracks.following), free((void *)job.tracks.beside);
    free((void *)job.tracks.members), free((void *)job.tracks.members_at);
    free(now.place), free(now.done), free(now.queued), free(now.missing), free(now.full), free(now.arriving);
    free(now.filled), free(now.order), free(now.completed), free(now.plan);
}

int main(int arguments, char **given) {
    const long rounds = arguments > 1 ? strtol(given[1], NULL, 10) : 100000;
    for (long round = 0; round < rounds; round++) {
        search_and_add();
        sets();
        partition();
        cells();
        nesting();
        calls();
        replay();
    }
    /* Else no row would ever have been played. */
    require(rounds < 1000 || played_rounds > rounds);
    printf("hostile columns: %ld rounds\n", rounds);
    return 0;
}
