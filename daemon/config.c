/* config.c - from JSON to parameters, and what contradicts what. One of the few users of cJSON. */
#include "daemon/config.h"
#include "client/assert.h"

#include <cjson/cJSON.h>

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void config_init(config *ret_config) {
    KVT_ASSERT(params_n <= CONFIG_MAX_PARAMS);
    memset(ret_config, 0, sizeof *ret_config);
    params_init(&ret_config->values);
}

/* --- one JSON text -----------------------------------------------------------------------------
 */

typedef struct reader {
    config *config;
    config_tenant *tenant; /* that is read; NULL: none */
    const char *text;
    size_t n_bytes;
    const json_scan *scan;
    char *why;
    size_t why_bytes;
} reader;

/* text[0 .. n_bytes) for a message: cut after 40 bytes (between characters), and without control
 * characters. */
static const char *quoted(const char *text, size_t n_bytes, char to[64]) {
    size_t n = 0, i = 0;
    while (i < n_bytes) {
        size_t length = utf8_length(text + i, n_bytes - i);
        if (i + length > 40 || length == 0)
            break;
        for (size_t end = i + length; i < end; i++)
            to[n++] = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i];
    }
    snprintf(to + n, 64 - n, "%s", i < n_bytes ? "..." : "");
    return to;
}

static kvt_status fail(const reader *r, size_t at, kvt_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static kvt_status fail(const reader *r, size_t at, kvt_status status, const char *format, ...) {
    char what[CONFIG_WHY_BYTES];
    json_place place = json_place_of(r->text, r->n_bytes, at);
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    snprintf(r->why, r->why_bytes, "%s:%u:%u: %s", r->config->file, place.line, place.column, what);
    return status;
}

static kvt_status unknown_key(const reader *r, const json_value *value) {
    char key[64], shown[64];
    size_t n = json_unescape(r->text, value->key_at, key, sizeof key);
    uint32_t flags = r->tenant ? PARAM_OF_TENANT : 0;
    const param *nearest = n <= sizeof key ? param_nearest_of(key, n, flags) : NULL;
    const char *name = nearest ? nearest->name : NULL;
    if (r->tenant && (!nearest || strcmp(name, "tenant") == 0))
        name = "name";
    quoted(key, n < sizeof key ? n : sizeof key, shown);
    if (r->tenant && n <= sizeof key && param_find(key, n))
        return fail(r, value->key_at, KVT_EINVAL,
                    "\"%s\": this stands beside \"tenants\", not in one of them", shown);
    if (name)
        return fail(r, value->key_at, KVT_EINVAL,
                    "\"%s\": this key is not known; did you mean \"%s\"?", shown, name);
    return fail(r, value->key_at, KVT_EINVAL,
                "\"%s\": this key is not known; kvtrunkd --help names all", shown);
}

/* The value has the wrong type, or is of the right one and refused. */
static kvt_status bad_value(const reader *r, const param *p, const json_value *value,
                            const char *what) {
    char shown[64];
    quoted(r->text + value->at, value->n_bytes, shown);
    return fail(r, value->at, KVT_EINVAL, "\"%s\" = %s: %s", p->name, shown, what);
}

static kvt_status wrong_type(const reader *r, const param *p, const json_value *value) {
    static const char *const needed[] = {
        [PARAM_SIZE] = "a string such as \"64GiB\"",
        [PARAM_COUNT] = "a number",
        [PARAM_MS] = "a number",
        [PARAM_TEXT] = "a string",
        [PARAM_MODE] = "a string such as \"0640\"",
        [PARAM_BOOL] = "true or false",
        [PARAM_UIDS] = "a list",
        [PARAM_GIDS] = "a list",
        [PARAM_TENANTS] = "a list of objects",
        [PARAM_ENUM] = "a string",
        [PARAM_GPUS] = "a number or a string",
    };
    char what[400], range[160];
    snprintf(what, sizeof what, "it needs %s: %s", needed[p->type],
             param_range(p, range, sizeof range));
    return bad_value(r, p, value, what);
}

/* Does a JSON value of this kind fit the parameter? */
static int type_fits(const param *p, const cJSON *item) {
    switch (p->type) {
    case PARAM_SIZE:
    case PARAM_GPUS:
        return cJSON_IsString(item) || cJSON_IsNumber(item);
    case PARAM_COUNT:
    case PARAM_MS:
        return cJSON_IsNumber(item);
    case PARAM_BOOL:
        return cJSON_IsBool(item);
    case PARAM_UIDS:
    case PARAM_GIDS:
    case PARAM_TENANTS:
        return cJSON_IsArray(item);
    case PARAM_TEXT:
    case PARAM_MODE:
    case PARAM_ENUM:
        return cJSON_IsString(item);
    }
    return 0;
}

/* A string's value comes from the parser; a number's from the text, since a double is not exact. */
static const char *text_of(const reader *r, const cJSON *item, const json_value *value,
                           size_t *ret_n) {
    if (cJSON_IsString(item)) {
        *ret_n = strlen(item->valuestring);
        return item->valuestring;
    }
    *ret_n = value->n_bytes;
    return r->text + value->at;
}

/* Where what is read goes. */
static param_values *values_of(const reader *r) {
    return r->tenant ? &r->tenant->values : &r->config->values;
}

static kvt_status read_ids(const reader *r, const param *p, const cJSON *list,
                           const json_value *value) {
    char what[400];
    size_t n;
    param_no_ids(p, values_of(r));
    for (const cJSON *item = list->child; item; item = item->next) {
        value++; /* elements are scalars, so the scan's values are theirs one by one */
        if (!cJSON_IsString(item) && !cJSON_IsNumber(item))
            return wrong_type(r, p, value);
        const char *text = text_of(r, item, value, &n);
        if (param_add_id(p, text, n, values_of(r), what, sizeof what) != KVT_OK)
            return bad_value(r, p, value, what);
    }
    return KVT_OK;
}

static kvt_status read_tenants(const reader *r, const param *p, const cJSON *list,
                               const json_value *value);

/* The row that a key means here. */
static const param *row_for(const reader *r, const char *key) {
    if (!r->tenant)
        return param_find(key, strlen(key));
    const param *p =
        strcmp(key, "name") == 0 ? param_find("tenant", 6) : param_find(key, strlen(key));
    return p && p->flags & PARAM_OF_TENANT && strcmp(key, "tenant") != 0 ? p : NULL;
}

static kvt_status read_member(const reader *r, const cJSON *item, const json_value *value) {
    char what[400];
    size_t n;
    const param *p = row_for(r, item->string);
    if (!p)
        return unknown_key(r, value);
    if (!type_fits(p, item))
        return wrong_type(r, p, value);
    kvt_status status;
    if (p->type == PARAM_TENANTS) {
        status = read_tenants(r, p, item, value);
    } else if (p->type == PARAM_UIDS || p->type == PARAM_GIDS) {
        status = read_ids(r, p, item, value);
    } else {
        const char *text = text_of(r, item, value, &n);
        status = param_set(p, text, n, values_of(r), what, sizeof what);
        if (status != KVT_OK)
            status = bad_value(r, p, value, what);
    }
    if (r->tenant) {
        r->tenant->is_set |= UINT64_C(1) << (p - params);
        return status;
    }
    r->config->from[p - params].source = CONFIG_FILE;
    r->config->from[p - params].place = json_place_of(r->text, r->n_bytes, value->key_at);
    return status;
}

/* The members of the object at this value, in order: the parser's list and the scan's values of the
 * next depth go side by side. */
static kvt_status read_members(const reader *r, const cJSON *object, const json_value *at) {
    const json_scan *scan = r->scan;
    uint32_t i = (uint32_t)(at - scan->values) + 1;
    for (const cJSON *item = object->child; item; item = item->next, i++) {
        while (i < scan->n_values && scan->values[i].depth != at->depth + 1)
            i++;
        KVT_ASSERT(i < scan->n_values);
        kvt_status status = read_member(r, item, &scan->values[i]);
        if (status != KVT_OK)
            return status;
    }
    return KVT_OK;
}

static kvt_status read_tenants(const reader *r, const param *p, const cJSON *list,
                               const json_value *value) {
    config *c = r->config;
    uint64_t hash = UINT64_C(14695981039346656037);
    const json_value *at = value + 1;
    c->n_tenants = 0;
    for (const cJSON *item = list->child; item; item = item->next, at++) {
        while (at->depth != value->depth + 1)
            at++;
        if (!cJSON_IsObject(item))
            return wrong_type(r, p, at);
        if (c->n_tenants == PARAM_MAX_TENANTS)
            return bad_value(r, p, at, "these are too many");
        config_tenant *tenant = &c->tenants[c->n_tenants++];
        *tenant = (config_tenant){.place = json_place_of(r->text, r->n_bytes, at->at)};
        reader one = *r;
        one.tenant = tenant;
        kvt_status status = read_members(&one, item, at);
        if (status != KVT_OK)
            return status;
    }
    /* What a reload compares: whether something was changed in the list. */
    for (const json_value *v = value; v < at; v++) {
        hash = (hash ^ v->key_hash) * UINT64_C(1099511628211);
        for (uint32_t i = 0; i < v->n_bytes; i++)
            hash = (hash ^ (unsigned char)r->text[v->at + i]) * UINT64_C(1099511628211);
    }
    c->values.tenants = c->n_tenants ? hash | 1 : 0;
    return KVT_OK;
}

static kvt_status read_object(const reader *r, const cJSON *root) {
    if (!cJSON_IsObject(root))
        return fail(r, r->scan->values[0].at, KVT_ESYNTAX,
                    "a configuration is one object: {\"key\": value, ...}");
    return read_members(r, root, &r->scan->values[0]);
}

kvt_status config_parse(config *c, const char *file, const char *text, size_t n_bytes, char *why,
                        size_t why_bytes) {
    kvt_status status;
    cJSON *root = NULL;
    json_scan *scan = malloc(sizeof *scan);
    char *blanked = malloc(n_bytes <= JSON_MAX_BYTES ? n_bytes + 1 : 1);
    reader r = {c, NULL, text, n_bytes, scan, why, why_bytes};
    snprintf(c->file, sizeof c->file, "%s", file);
    if (!scan || !blanked) {
        snprintf(why, why_bytes, "%s: no memory to read it", file);
        status = KVT_ENOMEM;
        goto out;
    }
    status = json_scan_text(text, n_bytes, blanked, scan);
    if (status != KVT_OK) {
        snprintf(why, why_bytes, "%s:%u:%u: %s", c->file, scan->place.line, scan->place.column,
                 scan->why);
        goto out;
    }
    root = cJSON_ParseWithLength(blanked, n_bytes);
    if (!root) {
        /* The scan is stricter than the parser, so only memory can be missing. */
        snprintf(why, why_bytes, "%s: no memory to read it", file);
        status = KVT_ENOMEM;
        goto out;
    }
    status = read_object(&r, root);
out:
    cJSON_Delete(root);
    free(blanked);
    free(scan);
    return status;
}

/* --- a file ------------------------------------------------------------------------------------
 */

/* Reads at most JSON_MAX_BYTES + 1 bytes, so that a longer file is seen and a device does no harm.
 */
static kvt_status read_all(int fd, char *to, size_t *ret_n_bytes) {
    size_t n_bytes = 0;
    while (n_bytes <= JSON_MAX_BYTES) {
        ssize_t n = read(fd, to + n_bytes, JSON_MAX_BYTES + 1 - n_bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return KVT_EIO;
        if (n == 0)
            break;
        n_bytes += (size_t)n;
    }
    *ret_n_bytes = n_bytes;
    return KVT_OK;
}

kvt_status config_read(config *c, const char *file, char *why, size_t why_bytes) {
    struct stat info;
    size_t n_bytes;
    kvt_status status = KVT_EIO;
    char *text = malloc(JSON_MAX_BYTES + 1);
    int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (!text) {
        snprintf(why, why_bytes, "%s: no memory to read it", file);
        status = KVT_ENOMEM;
    } else if (fd < 0) {
        status = errno == ENOENT ? KVT_ENOENT : KVT_EIO;
        snprintf(why, why_bytes, "%s: it cannot be opened: %s", file, strerror(errno));
    } else if (fstat(fd, &info) != 0 || S_ISDIR(info.st_mode)) {
        snprintf(why, why_bytes, "%s: this is a directory, not a configuration", file);
    } else if (S_ISFIFO(info.st_mode) && fcntl(fd, F_SETFL, 0) != 0) {
        /* opening must not wait for a writer, reading must */
        snprintf(why, why_bytes, "%s: it cannot be read: %s", file, strerror(errno));
    } else if (S_ISREG(info.st_mode) && info.st_size > JSON_MAX_BYTES) {
        status = KVT_ELIMIT;
        snprintf(why, why_bytes, "%s:1:1: it has %lld bytes; at most %d are read", file,
                 (long long)info.st_size, JSON_MAX_BYTES);
    } else if (read_all(fd, text, &n_bytes) != KVT_OK) {
        snprintf(why, why_bytes, "%s: it cannot be read: %s", file, strerror(errno));
    } else {
        status = config_parse(c, file, text, n_bytes, why, why_bytes);
    }
    if (fd >= 0)
        close(fd);
    free(text);
    return status;
}

/* --- the command line --------------------------------------------------------------------------
 */

kvt_status config_set(config *c, const char *option, const char *text, char *why,
                      size_t why_bytes) {
    char what[400], shown[64];
    const char *equals = strchr(text, '=');
    size_t n_key = equals ? (size_t)(equals - text) : strlen(text);
    const param *p = param_find(text, n_key);
    quoted(text, n_key, shown);
    if (!equals) {
        snprintf(why, why_bytes, "%s %s: it needs KEY=VALUE", option, shown);
        return KVT_ESYNTAX;
    }
    if (!p) {
        const param *nearest = param_nearest(text, n_key);
        snprintf(why, why_bytes, "%s: \"%s\": this key is not known; %s%s%s", option, shown,
                 nearest ? "did you mean \"" : "kvtrunkd --help names all",
                 nearest ? nearest->name : "", nearest ? "\"?" : "");
        return KVT_EINVAL;
    }
    const char *value = equals + 1;
    kvt_status status = param_set(p, value, strlen(value), &c->values, what, sizeof what);
    if (status != KVT_OK) {
        snprintf(why, why_bytes, "%s: \"%s\" = %s: %s", option, p->name,
                 quoted(value, strlen(value), shown), what);
        return status;
    }
    c->from[p - params].source = CONFIG_SET;
    return KVT_OK;
}

/* --- contradictions ----------------------------------------------------------------------------
 */

static size_t row_of(const char *name) {
    const param *p = param_find(name, strlen(name));
    KVT_ASSERT(p != NULL);
    return (size_t)(p - params);
}

/* "FILE:12:5: " where the parameter was set in a file, "command line: ", or "default: ". */
static const char *where(const config *c, const char *name, char *to, size_t room) {
    size_t row = row_of(name);
    if (c->from[row].source == CONFIG_FILE)
        snprintf(to, room, "%s:%u:%u", c->file, c->from[row].place.line, c->from[row].place.column);
    else
        snprintf(to, room, "%s", c->from[row].source == CONFIG_SET ? "command line" : "default");
    return to;
}

/* a contradicts b: the message stands where the one that was set stands, a if both were. */
static kvt_status contradiction(const config *c, const char *a, const char *b, const char *what,
                                char *why, size_t why_bytes) {
    char value_a[1024], value_b[1024], where_a[320], where_b[320];
    if (c->from[row_of(a)].source == CONFIG_STANDARD) {
        const char *swap = a;
        a = b;
        b = swap;
    }
    param_print(&params[row_of(a)], &c->values, value_a, sizeof value_a);
    param_print(&params[row_of(b)], &c->values, value_b, sizeof value_b);
    snprintf(why, why_bytes, "%s: \"%s\" = %.300s contradicts \"%s\" = %.300s (%s): %s",
             where(c, a, where_a, sizeof where_a), a, value_a, b, value_b,
             where(c, b, where_b, sizeof where_b), what);
    return KVT_EINVAL;
}

static int is_set(const config *c, const char *name) {
    return c->from[row_of(name)].source != CONFIG_STANDARD;
}

/* Can somebody of the list not read the arena? Root can, and so can the daemon's own user. */
static int shuts_out_a_uid(const param_values *v, uint32_t own_uid) {
    if (v->arena_mode & 0044)
        return 0;
    for (uint64_t i = 0; i < v->n_uids; i++)
        if (v->uids[i] != own_uid && v->uids[i] != 0)
            return 1;
    return v->n_gids > 0;
}

enum { LEAST_PAGE_BYTES = 256 };

/* What the pages of all tiers may take. */
static uint64_t tiers_bytes(const param_values *v) {
    return v->arena + v->host + (v->disk_dir[0] ? v->disk : 0);
}

static kvt_status too_many_pages(const config *c, char *why, size_t why_bytes) {
    const param_values *v = &c->values;
    char what[320];
    const char *below = v->host && v->disk_dir[0] ? ", host and disk"
                        : v->host                 ? " and host"
                        : v->disk_dir[0]          ? " and disk"
                                                  : "";
    uint64_t fit = tiers_bytes(v) / LEAST_PAGE_BYTES, mib = UINT64_C(1) << 20;
    uint64_t missing = v->max_pages * LEAST_PAGE_BYTES - tiers_bytes(v);
    snprintf(what, sizeof what,
             "max_pages asks for places for %llu pages, and arena%s %s room for %llu at most, "
             "since a page takes %d bytes at the least: lower max_pages to that, or raise arena to "
             "%lluMiB",
             (unsigned long long)v->max_pages, below, *below ? "have" : "has",
             (unsigned long long)fit, LEAST_PAGE_BYTES,
             (unsigned long long)((v->arena + missing + mib - 1) / mib));
    return contradiction(c, "max_pages", "arena", what, why, why_bytes);
}

static kvt_status check_one(const config *c, uint32_t own_uid, char *why, size_t why_bytes) {
    const param_values *v = &c->values;
    if (v->max_leases > v->max_leases_total)
        return contradiction(c, "max_leases", "max_leases_total",
                             "one worker cannot have more leases than all together", why,
                             why_bytes);
    if (v->max_pages > 0 && v->max_claimed_pages > v->max_pages && is_set(c, "max_claimed_pages"))
        return contradiction(c, "max_claimed_pages", "max_pages",
                             "one worker cannot claim more pages than there can be", why,
                             why_bytes);
    if (v->max_pinned > 0 && v->max_pinned_owner > v->max_pinned)
        return contradiction(c, "max_pinned_owner", "max_pinned",
                             "one owner cannot pin more than all together", why, why_bytes);
    if (v->arena > 0 && v->max_pages > tiers_bytes(v) / LEAST_PAGE_BYTES)
        return too_many_pages(c, why, why_bytes);
    if (v->max_sessions > v->max_leases_total)
        return contradiction(c, "max_sessions", "max_leases_total",
                             "not every worker could have a lease", why, why_bytes);
    if (shuts_out_a_uid(v, own_uid))
        return contradiction(c, "arena_mode", "uids",
                             "these users could not read the arena; use \"0640\" with arena_group, "
                             "or \"0644\"",
                             why, why_bytes);
    return KVT_OK;
}

/* --- tenants -----------------------------------------------------------------------------------
 */

static kvt_status refuse_tenant(const config *c, const config_tenant *t, char *why,
                                size_t why_bytes, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
static kvt_status refuse_tenant(const config *c, const config_tenant *t, char *why,
                                size_t why_bytes, const char *format, ...) {
    char what[CONFIG_WHY_BYTES / 2];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    snprintf(why, why_bytes, "%s:%u:%u: tenant %s: %s", c->file, t->place.line, t->place.column,
             t->values.tenant[0] ? t->values.tenant : "without a name", what);
    return KVT_EINVAL;
}

/* An id of `a` that `b` has as well, or UINT32_MAX. */
static uint32_t common_id(const uint32_t *a, uint64_t n_a, const uint32_t *b, uint64_t n_b) {
    for (uint64_t i = 0; i < n_a; i++)
        for (uint64_t j = 0; j < n_b; j++)
            if (a[i] == b[j])
                return a[i];
    return UINT32_MAX;
}

static kvt_status differ(const config *c, const config_tenant *t, const config_tenant *before,
                         char *why, size_t why_bytes) {
    const param_values *a = &t->values, *b = &before->values;
    uint32_t uid = common_id(a->uids, a->n_uids, b->uids, b->n_uids);
    uint32_t gid = common_id(a->gids, a->n_gids, b->gids, b->n_gids);
    if (strcmp(a->tenant, b->tenant) == 0)
        return refuse_tenant(c, t, why, why_bytes, "there are two of this name");
    if (uid != UINT32_MAX)
        return refuse_tenant(c, t, why, why_bytes, "user %u belongs to tenant %s already", uid,
                             b->tenant);
    if (gid != UINT32_MAX)
        return refuse_tenant(c, t, why, why_bytes, "group %u belongs to tenant %s already", gid,
                             b->tenant);
    return KVT_OK;
}

kvt_status config_settle(config *c, char *why, size_t why_bytes) {
    if (c->n_tenants && (is_set(c, "uids") || is_set(c, "gids") || is_set(c, "tenant")))
        return contradiction(c,
                             is_set(c, "uids")   ? "uids"
                             : is_set(c, "gids") ? "gids"
                                                 : "tenant",
                             "tenants", "with several tenants it stands in each of them", why,
                             why_bytes);
    for (uint32_t k = 0; k < c->n_tenants; k++) {
        config_tenant *t = &c->tenants[k];
        for (size_t i = 0; i < params_n; i++)
            if (!(t->is_set >> i & 1) && params[i].type != PARAM_UIDS &&
                params[i].type != PARAM_GIDS && params[i].type != PARAM_TENANTS &&
                i != row_of("tenant"))
                param_copy(&params[i], &c->values, &t->values);
        if (!t->values.tenant[0])
            return refuse_tenant(c, t, why, why_bytes, "it needs a \"name\"");
        if (t->values.n_uids + t->values.n_gids == 0)
            return refuse_tenant(c, t, why, why_bytes,
                                 "nobody belongs to it: name \"uids\" or "
                                 "\"gids\"");
        for (uint32_t j = 0; j < k; j++) {
            kvt_status status = differ(c, t, &c->tenants[j], why, why_bytes);
            if (status != KVT_OK)
                return status;
        }
    }
    return KVT_OK;
}

static kvt_status check_tenant(const config *c, const config_tenant *t, uint32_t own_uid, char *why,
                               size_t why_bytes) {
    char what[CONFIG_WHY_BYTES / 2];
    if (t->values.arena_mode & 0004)
        return refuse_tenant(c, t, why, why_bytes,
                             "\"arena_mode\" = \"%04o\" would let every other tenant read its "
                             "arena; use \"0640\" with an arena_group of its own",
                             (unsigned)t->values.arena_mode);
    config *one = malloc(sizeof *one);
    if (!one) {
        snprintf(why, why_bytes, "no memory to check tenant %s", t->values.tenant);
        return KVT_ENOMEM;
    }
    *one = *c;
    one->values = t->values;
    kvt_status status = check_one(one, own_uid, what, sizeof what);
    free(one);
    return status == KVT_OK ? KVT_OK : refuse_tenant(c, t, why, why_bytes, "%s", what);
}

kvt_status config_check(const config *c, uint32_t own_uid, char *why, size_t why_bytes) {
    kvt_status status = c->n_tenants ? KVT_OK : check_one(c, own_uid, why, why_bytes);
    for (uint32_t k = 0; k < c->n_tenants && status == KVT_OK; k++)
        status = check_tenant(c, &c->tenants[k], own_uid, why, why_bytes);
    return status;
}
