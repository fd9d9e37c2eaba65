/*
 * kvt_llama.h - kvtrunk under llama.cpp, and its manual.
 *
 * A program that uses libllama calls kvt_llama_prefill() where it would have called llama_decode()
 * on a prompt. What the machine's kvtrunkd holds of the prompt is loaded into the sequence; what
 * another process is computing at this moment is waited for; the rest is computed, and handed in
 * for all others as it gets done. The context is then as after llama_decode(): the sequence holds
 * the prompt, and the logits of its last token are there.
 *
 *     llama_context_params params = ...; kvt_llama_context_params(&params);
 *     llama_context *ctx = llama_init_from_model(model, params);
 *     kvt_llama_open(ctx, &options, &k);
 *     kvt_llama_prefill(k, sequence, tokens, n_tokens, &result);    ... llama_decode(), sampling
 *     kvt_llama_close(k);
 *
 * WITHOUT A DAEMON, with one that dies meanwhile, with one that has no room: kvt_llama_prefill()
 * computes, as llama.cpp alone would. It fails only where llama_decode() fails.
 *
 * THE SAME BITS. Logits behind a loaded prefix are bit-equal to those behind a prefix that this
 * process computes itself, cut at the same place. Three things see to it:
 * - Everything that changes bytes is in the realm: the file of weights, the libraries' own files,
 *   what the processor can, the context's parameters, and what kvt_llama_options adds.
 * - llama.cpp computes a token by other code in a small micro-batch than in a large one, and its
 *   bits then differ. Rows that were computed in fewer than seal_min_tokens at a time are used here
 *   but not handed in. (So the last tokens of a prompt, where they are few, are computed by
 *   everybody.)
 * - A page lies in the cache as llama.cpp would have laid it: in the order of positions.
 * They hold while the codec set is f16, and while the sequence's cells lie in order: in a context
 * that serves several sequences at once llama.cpp itself adds up in another order.
 *
 * SLIDING WINDOWS. Layers that see the last W tokens only are a layer group of their own (LAYER
 * GROUPS in kvtrunk.h): the daemon keeps of them what the places where prompts end, or part, need,
 * and W tokens of them are loaded. A prompt that turns off in the middle of one that was computed
 * in one go finds nothing there the first time, and leaves a window there for the next one.
 * whole_windows 1 keeps all rows of such layers, in a realm of its own: more memory (6 times as
 * much, say, with 5 such layers to 1), and every prefix of what was computed is found.
 * llama.cpp itself keeps all rows with swa_full, else the window in a ring of cells. Where that
 * ring has gone round, it adds up in another order than behind a window that was loaded, and the
 * bits of logits differ by that. It does so too where several threads share the attention of one
 * token (when text is generated, not in prompts of more), and with pages of less than 64 tokens.
 * swa_full with whole_windows keeps the bits in all these cases.
 *
 * WHAT IT CANNOT: contexts without flash attention (V is kept transposed), without kv_unified, or
 * without a sequence to spare; models whose layers differ in their heads, that keep no V (MLA),
 * recurrent state, or more than a position a token (M-RoPE). kvt_llama_open says so: KVT_ENOTSUP.
 *
 * Every call but kvt_llama_last_error uses the context: one thread at a time, as libllama asks.
 */
#ifndef KVT_LLAMA_H
#define KVT_LLAMA_H

#include <llama.h>

#include <kvtrunk.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvt_llama kvt_llama;

typedef struct kvt_llama_options {
    /* What the context and the model were made with: it goes into the realm. context is needed;
     * model NULL stands for llama_model_default_params(). */
    const struct llama_context_params *context;
    const struct llama_model_params *model;

    /* The file of weights, which is read and hashed once (some 10 GB/s from memory); or, for
     * weights in several files (refused without) or where that takes too long, a name that is
     * another one for other weights. One of the two is needed; model_name wins. */
    const char *model_path;
    const char *model_name;

    const char *adapter; /* LoRA: realm.adapter, realm.adapter_version of kvtrunk.h */
    const char *adapter_version;
    const char *salt; /* keeps two users' prefixes apart */
    const char
        *extra; /* what else changes bytes and the library cannot see: a control vector, say */
    const char *codec; /* NULL = "f16". Quantised KV types know only that one */

    const char *socket; /* as kvt_options.socket */
    const char *name;
    uint32_t timeout_ms; /* of every call to the daemon; 0 = 1000 */

    /* How long to wait for another process that computes what comes next, counted anew each time
     * that it gets on; then compute as well. 0 = 60000; KVT_LLAMA_NO_WAIT = never wait. */
    uint32_t wait_ms;

    uint32_t page_tokens;     /* 0 = 64; see SLIDING WINDOWS for smaller ones */
    uint32_t seal_min_tokens; /* 0 = 64. See THE SAME BITS: 1 hands in every row, and loses them */
    int whole_windows;        /* 1: see SLIDING WINDOWS */

    /* A sequence of the context that is the library's own; -1 = the last one (n_seq_max - 1). */
    llama_seq_id scratch;
} kvt_llama_options;

#define KVT_LLAMA_NO_WAIT UINT32_MAX

typedef struct kvt_llama_result {
    uint32_t n_tokens;
    uint32_t loaded_tokens;   /* of them, taken from the daemon */
    uint32_t computed_tokens; /* computed here: the rest */
    uint32_t sealed_tokens; /* leading tokens that are held for others after this call, at least */
    double waited_ms;       /* for other processes that computed the same */
    double loading_ms;      /* decoding pages, and handing them to llama.cpp */
    double computing_ms;    /* in llama_decode */
    double sealing_ms;      /* taking pages from llama.cpp, encoding and handing in */
    kvt_status cache;       /* KVT_OK, or the failure after which it went on alone */
} kvt_llama_result;

/* Sets in the parameters what the library needs: flash attention on, kv_unified, one sequence more.
 * Call it before llama_init_from_model. swa_full is set too, for the same bits; without it a model
 * with sliding-window layers takes less memory in the worker. See SLIDING WINDOWS. */
void kvt_llama_context_params(struct llama_context_params *params);

/*
 * Looks at the context (one token is decoded in the scratch sequence: what llama.cpp's bytes look
 * like is learnt from them, not believed) and connects. No daemon is no error: it is tried again at
 * each prefill. options is copied.
 *
 * Errors: KVT_EINVAL, KVT_ENOTSUP, KVT_EPROTO (this llama.cpp's state has another layout),
 * KVT_EIO (model_path), KVT_ENOMEM, KVT_ELIMIT, KVT_ESYNTAX (codec); and of the daemon KVT_EDENIED,
 * KVT_EVERSION, KVT_EGEOMETRY. After any of them llama.cpp can be used without the library;
 * *ret_llama is as it was.
 */
kvt_status kvt_llama_open(struct llama_context *ctx, const kvt_llama_options *options,
                          kvt_llama **ret_llama);
void kvt_llama_close(kvt_llama *llama);

/*
 * Makes the sequence hold tokens[0 .. n_tokens), n_tokens > 0, and nothing else, with the logits of
 * the last one computed (llama_get_logits_ith(ctx, -1)). *ret_result (may be NULL) tells how.
 *
 * Errors: KVT_EINVAL (no library, no tokens, a bad sequence), KVT_ELIMIT (more tokens than the
 * context has room for): the sequence is as it was. KVT_EINTERNAL (llama_decode failed): it is
 * empty then. *ret_result is untouched. Cost: what is held takes about 1 ms for 10 MB; each 512
 * computed tokens one more round trip or two. 16 MiB (or a page, if that is more) are kept for it
 * until kvt_llama_close.
 */
kvt_status kvt_llama_prefill(kvt_llama *llama, llama_seq_id sequence, const llama_token *tokens,
                             size_t n_tokens, kvt_llama_result *ret_result);

/* The client below: for kvt_status_json and the like. NULL-safe, never closed by the caller. */
kvt_client *kvt_llama_client(kvt_llama *llama);

/* The realm that the context's pages live in, for reports. Valid until kvt_llama_close. */
const kvt_realm *kvt_llama_realm(const kvt_llama *llama);

/* The last error of the calling thread in words, and after a prefill that went on alone the reason.
 * Valid until the thread's next call of the library. Never NULL. */
const char *kvt_llama_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
