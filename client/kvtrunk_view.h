/*
 * kvtrunk_view.h - the part of kvtrunk.h that speaks of views. kvtrunk.h includes it.
 */
#ifndef KVTRUNK_VIEW_H
#define KVTRUNK_VIEW_H

#include "kvtrunk.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------
 * VIEWS: leases of some rows of a prompt
 *
 * A lease may name some rows of a long prompt alone, for engines that attend to no others: the
 * first tokens and the last (StreamingLLM), and those between that matter most (H2O, SnapKV). The
 * daemon keeps their pages; what lies between may be on disk, or be evicted meanwhile. Positions
 * are those of the whole prompt, which stays whole for everybody else.
 * ---------------------------------------------------------------------------------------------- */

/* Rows of a view beside its sinks and its window. More are refused with KVT_ELIMIT. */
enum { KVT_MAX_VIEW_PICKS = 1 << 16 };

typedef struct kvt_view {
    uint32_t sink_tokens;   /* the first ones */
    uint32_t window_tokens; /* the last ones of what is held; not both are 0 */
    uint32_t budget_tokens; /* 0: those alone. Else so many rows at most, those among them; the
                               others by kvt_importance, if any is known, the later of equals */
} kvt_view;
typedef struct kvt_run {
    uint32_t first_token, n_tokens; /* of the path */
} kvt_run;

/*
 * As kvt_acquire_spans (n_spans may be 0), as a view. flags: KVT_LEAVE_ONE alone. What is computed
 * over a view is not what the whole prompt gives, so nothing is claimed or sealed with it. It stays
 * as it is until it is released: no kvt_extend, no kvt_fork (KVT_EINVAL). held_tokens of
 * kvt_lease_info is the window's end. If pages of sinks or window cannot be brought up in time, the
 * view ends in front of the first; such picks are left out. A layer group has those rows that lie
 * in its own window; a view that would end where such a group lacks rows of it (since its window
 * begins with those of the later end) has nothing. KVT_ELIMIT: also if all views name max_pages
 * pages.
 */
kvt_status kvt_acquire_view(kvt_client *client, const uint32_t *tokens, size_t n_tokens,
                            const kvt_span *spans, size_t n_spans, const kvt_view *view,
                            uint32_t flags, kvt_lease **ret_lease);

/*
 * The same view for ranks that ask together, see kvt_acquire_ranks: the first call fixes the rows
 * for all, and what is left out is left out for all. Until the last rank has come the whole path is
 * kept. (A rank that asks by itself, with kvt_acquire_view, gets an answer of its own.)
 *
 * Errors: as kvt_acquire_view, and KVT_EINVAL (another path or another view than the first one's),
 * KVT_EEXIST, KVT_ELIMIT (requests of groups).
 */
kvt_status kvt_acquire_view_ranks(kvt_client *client, uint64_t group, uint64_t request,
                                  const uint32_t *tokens, size_t n_tokens, const kvt_view *view,
                                  uint32_t flags, kvt_lease **ret_lease);

/* kvt_acquire_view as a call that does not block, with the errors of kvt_acquire_begin. tokens,
 * spans and view are copied; kvt_finish gives the lease. */
kvt_status kvt_acquire_view_begin(kvt_client *client, const uint32_t *tokens, size_t n_tokens,
                                  const kvt_span *spans, size_t n_spans, const kvt_view *view,
                                  uint32_t flags, void *user, kvt_pending **ret_pending);

/* The tokens whose rows the lease has, also one that is no view: rising runs that do not touch, in
 * memory of the lease, until a call that may change it. No round trip. KVT_EINVAL, KVT_EBUSY. */
kvt_status kvt_lease_runs(kvt_lease *lease, const kvt_run **ret_runs, size_t *ret_n);

/*
 * How important rows are, counted as kvt_decode_rows does: any measure of 0 or more, the same for
 * all workers of a realm, such as the attention that a row got; behind kvt_seal, or at any time
 * later. Of several values the highest stays, whoever said it; 0 says nothing. The daemon keeps 8
 * bits of precision beside the page, in memory: they go with the page and with the daemon. A page
 * that is copied on write begins without, a longer one that replaces a short one has what that had.
 * Errors: KVT_EINVAL (rows that the lease has not; negative, infinite, no number), KVT_ESTALE, and
 * those of the connection; to call it again does no harm. Cost: one round trip.
 */
kvt_status kvt_importance(kvt_lease *lease, size_t first_row, size_t n_rows,
                          const float *importance);

/* As kvt_decode, but rows are counted as the lease has them (0 .. n_rows of kvt_lease_info),
 * without the tokens between its runs, and come to stand one after the other in `to`. */
kvt_status kvt_decode_rows(kvt_lease *lease, size_t first_row, size_t n_rows, uint32_t first_layer,
                           uint32_t n_layers, const kvt_layout *to);

#ifdef __cplusplus
}
#endif
#endif
