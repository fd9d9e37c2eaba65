/*
 * policy.h - which tail goes first: the keys by which radix.h finds it. The policy chooses, the
 * core acts. It is a pure function of what it is told: no clock, no I/O, no allocation after its
 * start, the same answers for the same calls. One block of memory, sized when it is made.
 *
 *   "lru"    the key is the number of the use: longest unused first
 *   "worth"  the key is the time at which the page will have stayed as long as pages of its kind
 *            are worth: last use + life, and life grows with what was learned of the kind
 *
 * Time is counted in pages that were put in: it stands still while nothing needs room.
 *
 * A KIND is how often a prefix was asked for (1, 2, 3, 4 - 7, 8 - 31, more) and whether it is the
 * last page of a request: prompts mostly go on otherwise behind it. The WORTH of a kind is how many
 * of its pages were asked for again, over how many would have been if it were like all others,
 * looked at where it matters: at ages from an eighth to eight times of what pages now live. A kind
 * of worth 1 stays as long as under LRU; one of worth w stays w times as long, 0 to 4. If all kinds
 * are alike this is LRU, page for page.
 *
 * Whether that pays is counted on a sample of prefixes: what the worths would keep of it and what
 * LRU would keep are both followed (shadows), whatever is kept in fact. At first this is LRU; as
 * prefixes come again that only the worths would have kept, more than those that only LRU would
 * have kept, worths are trusted, in full at about twice as many. They are no longer when that
 * turns, nor when what is found in fact falls behind LRU's shadow. With little to go by (a cache
 * that hardly ever evicts, a short run) it stays LRU: what worths would have gained is lost then.
 *
 * What it remembers is bounded: eight bytes a page; a table of what was evicted, so that a prefix
 * that comes back is not taken for a new one (8 to 16 bytes a page); and a sample of at most 16,384
 * prefixes, evicted ones too, from which the worths are learned, and its two shadows (450 KiB
 * together). Prefixes are compared there by 32-bit hashes: a chance match keeps a page too long or
 * too short, and decides nothing else.
 *
 * Pages that take fewer bytes stay longer in proportion, and the deeper of two equals goes first.
 * Sharing between clients needs no word of its own: who shares a prefix asks for it.
 */
#ifndef KVT_DAEMON_POLICY_H
#define KVT_DAEMON_POLICY_H

#include "client/kvtrunk.h"

typedef enum policy_rule {
    POLICY_WORTH = 0,
    POLICY_LRU,
} policy_rule;

typedef struct policy policy;

/* Bytes that policy_init needs; max_pages 1 .. 2^30, as the tree's. 0 if it is out of range. */
size_t policy_bytes(policy_rule rule, uint32_t max_pages);

/* In memory[0 .. bytes), aligned to 8, which stays the caller's; what is not used yet is not
 * touched if the memory is zeroed, which it must be. KVT_EINVAL: max_pages; KVT_ELIMIT: bytes. */
kvt_status policy_init(void *memory, size_t bytes, policy_rule rule, uint32_t max_pages,
                       policy **ret_policy);

/* --- what is told -------------------------------------------------------------------------------
 * Pages are the tree's node ids, 1 .. max_pages; those behind are roots. O(1) unless stated. */

/*
 * A page was put into the tree behind parent; n_bytes is what it takes or will take. Returns its
 * key until it is used. Cost: O(n_tokens); once in a quarter of the pages' number O(sample).
 */
uint64_t policy_new(policy *p, uint32_t page, uint32_t parent, const uint32_t *tokens,
                    uint32_t n_tokens, uint64_t n_bytes);

/* A request begins: the uses that follow are its. */
void policy_request(policy *p);

typedef enum policy_use_flags {
    POLICY_AGAIN = 1, /* it goes on using what it had: no further request for this page */
    POLICY_LAST = 2,  /* the last page of the request */
} policy_use_flags;

/* The request uses this page. Returns the page's key from now on. Of a page of the sample this is
 * O(log sample). */
uint64_t policy_use(policy *p, uint32_t page, unsigned flags);

/* policy_use of this page comes soon: asks the processor for what it will look at. Changes nothing.
 */
void policy_fetch(const policy *p, uint32_t page);

/* The key of a page of worth 1 that is used now. Keys stay under 2^63. */
uint64_t policy_key_now(const policy *p);

/* A page of this key goes for want of room. policy_gone follows. */
void policy_evicts(policy *p, uint64_t key);

/* A page has left the tree, evicted or not. */
void policy_gone(policy *p, uint32_t page);

/* --- what can be looked at ----------------------------------------------------------------------
 */

enum { POLICY_KINDS = 12 };
typedef struct policy_look {
    uint64_t now;               /* pages put in */
    uint32_t live;              /* pages in the tree */
    double life;                /* of a page of worth 1, in pages put in */
    double trust;               /* in the worths, 0 .. 1 */
    double worth[POLICY_KINDS]; /* [2 * (1, 2, 3, 4, 8, 32 requests) + is last] */
    uint32_t sampled;           /* prefixes in the sample; one of 2^shift is taken */
    uint32_t shift;
} policy_look;
void policy_see(const policy *p, policy_look *ret_look);

/* The name that a configuration uses, and back (0 if there is none). */
const char *policy_name(policy_rule rule);
int policy_of_name(const char *name, policy_rule *ret_rule);

/*
 * Checks what is stated here: the sample's slots hold sampled prefixes once each, counts agree,
 * worths and lives are in range. KVT_EINTERNAL with a sentence in why (may be NULL). For tests.
 */
kvt_status policy_audit(const policy *p, char *why, size_t why_bytes);

#endif
