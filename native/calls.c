#include "calls.h"

#include "rounding.h"

/* Products are statements of their own: no compiler may join them with a sum, so that the results are those of numpy. */

/* Running sums of the time of a rank's pairs in a share of each call; the first is 0. */
static void sum_up(const struct calls_table *table, size_t rank, const double *share_of_call, double *running) {
    const double *shares = share_of_call + table->calls[rank];
    const int32_t *call = table->call[rank];
    const int64_t *took = table->ns[rank];
    double sum = running[0] = 0;
    for (int64_t i = 0; i < table->pairs[rank]; i++) {
        const double part = (double)took[i] * shares[call[i]];
        running[i + 1] = sum = sum + part;
    }
}

void calls_share(const struct calls_table *table, const double *share_of_call, double *ns, double *running) {
    for (size_t rank = 0; rank < table->ranks; rank++) {
        sum_up(table, rank, share_of_call, running);
        for (int64_t row = table->rows[rank]; row < table->rows[rank + 1]; row++) {
            ns[row] = running[table->end[row]] - running[table->first[row]];
        }
    }
}

void calls_placed(const struct calls_table *table, const double *share_of_call, const double *part_of_row,
                  const int32_t *place, size_t size, int64_t *ns, double *running) {
    for (size_t rank = 0; rank < table->ranks; rank++) {
        sum_up(table, rank, share_of_call, running);
        for (int64_t row = table->rows[rank]; row < table->rows[rank + 1]; row++) {
            const double time = running[table->end[row]] - running[table->first[row]];
            const double counts = time * part_of_row[row];
            if (place[row] >= 0 && (size_t)place[row] < size) ns[place[row]] = counts > 0 ? nearest(counts) : 0;
        }
    }
}

void calls_sums(const struct calls_table *table, const struct calls_least *known, const struct calls_excess *sums,
                double *room) {
    double *took = room, *least = took + table->size, *unknown = least + table->size;
    double *gone = unknown + table->size;
    took[0] = least[0] = unknown[0] = gone[0] = 0;
    for (size_t rank = 0; rank < table->ranks; rank++) {
        const double *least_ns = known->least_ns + table->calls[rank], *remains = known->remains + table->calls[rank];
        const int32_t *call = table->call[rank];
        const int64_t *count = table->count[rank], *ns = table->ns[rank];
        for (int64_t i = 0; i < table->pairs[rank]; i++) {
            const double whole = (double)ns[i], needs = least_ns[call[i]] * (double)count[i];
            const double remain = whole * remains[call[i]];
            took[i + 1] = took[i] + (remain > needs ? remain : 0);
            least[i + 1] = least[i] + (remain > needs ? needs : 0);
            unknown[i + 1] = unknown[i] + (needs != needs ? remain : 0);
            gone[i + 1] = gone[i] + (whole - remain);
        }
        for (int64_t row = table->rows[rank]; row < table->rows[rank + 1]; row++) {
            const int32_t first = table->first[row], end = table->end[row];
            sums->took[row] = took[end] - took[first];
            sums->least[row] = least[end] - least[first];
            sums->unknown[row] = unknown[end] - unknown[first];
            sums->gone[row] = gone[end] - gone[first];
        }
    }
}
