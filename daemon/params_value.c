/* params_value.c - parameters: finding a row, reading a value, printing it, comparing two. */
#include "daemon/params.h"
#include "client/assert.h"
#include "daemon/json_scan.h"

#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static uint64_t *number_at(const param *p, param_values *values) {
    return (uint64_t *)(void *)((char *)values + p->offset);
}

static uint64_t number_of(const param *p, const param_values *values) {
    return *(const uint64_t *)(const void *)((const char *)values + p->offset);
}

static const char *text_of(const param *p, const param_values *values) {
    return (const char *)values + p->offset;
}

/* --- finding -----------------------------------------------------------------------------------
 */

const param *param_find(const char *name, size_t n_bytes) {
    for (size_t i = 0; i < params_n; i++)
        if (strlen(params[i].name) == n_bytes && memcmp(params[i].name, name, n_bytes) == 0)
            return &params[i];
    return NULL;
}

enum { MAX_EDIT_BYTES = 32 };

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Optimal string alignment distance; a and b are at most MAX_EDIT_BYTES long. */
static size_t edits(const char *a, size_t n_a, const char *b, size_t n_b) {
    size_t row[3][MAX_EDIT_BYTES + 1]; /* rows i - 2, i - 1, i of the table, turning */
    for (size_t j = 0; j <= n_b; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t *now = row[i % 3], *above = row[(i + 2) % 3], *before = row[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            size_t cost = a[i - 1] == b[j - 1] ? 0 : 1;
            now[j] = least(above[j - 1] + cost, least(above[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = least(now[j], before[j - 2] + 1);
        }
    }
    return row[n_a % 3][n_b];
}

const param *param_nearest(const char *name, size_t n_bytes) {
    return param_nearest_of(name, n_bytes, 0);
}

const param *param_nearest_of(const char *name, size_t n_bytes, uint32_t flags) {
    const param *nearest = NULL;
    size_t fewest = MAX_EDIT_BYTES;
    if (n_bytes == 0 || n_bytes > MAX_EDIT_BYTES)
        return NULL;
    for (size_t i = 0; i < params_n; i++) {
        if ((params[i].flags & flags) != flags)
            continue;
        size_t n = edits(name, n_bytes, params[i].name, strlen(params[i].name));
        if (n < fewest) {
            fewest = n;
            nearest = &params[i];
        }
    }
    return fewest <= (n_bytes + 1) / 2 ? nearest : NULL;
}

/* --- ranges in words ---------------------------------------------------------------------------
 */

static const struct {
    const char *name;
    unsigned shift;
} units[] = {{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}, {"B", 0}};
enum { N_UNITS = sizeof units / sizeof *units };

/* The largest unit that gives a whole number. */
static int print_size(uint64_t bytes, char *to, size_t room) {
    size_t i = 0;
    while (i + 1 < N_UNITS && (bytes == 0 || bytes % (UINT64_C(1) << units[i].shift) != 0))
        i++;
    return snprintf(to, room, "%" PRIu64 "%s", bytes >> units[i].shift, units[i].name);
}

static void range_of_size(const param *p, char *to, size_t room) {
    char low[32], high[32];
    print_size(p->low, low, sizeof low);
    print_size(p->high, high, sizeof high);
    snprintf(to, room, "bytes, \"%s\" .. \"%s\"%s", low, high,
             p->flags & PARAM_AUTO ? ", or \"auto\"" : "");
}

static void range_of_text(const param *p, char *to, size_t room) {
    if (p->flags & PARAM_NAME) {
        snprintf(to, room,
                 "%" PRIu64 " .. %" PRIu64
                 " letters of a .. z and A .. Z, digits, \".\", \"_\" and "
                 "\"-\", and not begin with \".\"",
                 p->low, p->high);
        return;
    }
    snprintf(to, room, "%s of %" PRIu64 " .. %" PRIu64 " bytes%s",
             p->flags & PARAM_PATH ? "an absolute path" : "a string", p->low, p->high,
             p->flags & PARAM_AUTO ? ", or \"auto\"" : "");
}

static void range_of_enum(const param *p, char *to, size_t room) {
    size_t n = 0;
    to[0] = 0;
    for (size_t i = 0; p->choices[i]; i++) {
        const char *before = i == 0 ? "" : p->choices[i + 1] ? ", " : " or ";
        if (n < room)
            n += (size_t)snprintf(to + n, room - n, "%s\"%s\"", before, p->choices[i]);
    }
}

const char *param_range(const param *p, char *to, size_t room) {
    switch (p->type) {
    case PARAM_SIZE:
        range_of_size(p, to, room);
        break;
    case PARAM_COUNT:
        snprintf(to, room, "%s, %" PRIu64 " .. %" PRIu64,
                 p->flags & PARAM_POWER ? "a power of two" : "a whole number", p->low, p->high);
        break;
    case PARAM_MS:
        snprintf(to, room, "milliseconds, %" PRIu64 " .. %" PRIu64, p->low, p->high);
        break;
    case PARAM_TEXT:
        range_of_text(p, to, room);
        break;
    case PARAM_MODE:
        snprintf(to, room, "\"0600\", \"0640\", \"0604\" or \"0644\"");
        break;
    case PARAM_BOOL:
        snprintf(to, room, "true or false");
        break;
    case PARAM_UIDS:
        snprintf(to, room, "a list of at most %" PRIu64 " user ids and user names", p->high);
        break;
    case PARAM_GIDS:
        snprintf(to, room, "a list of at most %" PRIu64 " group ids and group names", p->high);
        break;
    case PARAM_TENANTS:
        snprintf(to, room, "a list of at most %" PRIu64 " objects, in a file", p->high);
        break;
    case PARAM_ENUM:
        range_of_enum(p, to, room);
        break;
    case PARAM_GPUS:
        snprintf(to, room,
                 "a number, %" PRIu64 " .. %" PRIu64 ", several in a string: \"0,1\", at most %d, "
                 "or \"all\"",
                 p->low, p->high, PARAM_MAX_GPUS);
        break;
    }
    return to;
}

/* --- reading -----------------------------------------------------------------------------------
 */

static kvt_status refuse(const param *p, char *why, size_t why_bytes, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static kvt_status refuse(const param *p, char *why, size_t why_bytes, const char *format, ...) {
    char what[128], range[160];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    snprintf(why, why_bytes, "%s; it must be %s", what, param_range(p, range, sizeof range));
    return KVT_EINVAL;
}

/* Digits alone; 0, or the number of bytes taken. *ret_number is UINT64_MAX when it is larger. */
static size_t take_number(const char *text, size_t n_bytes, uint64_t *ret_number) {
    uint64_t number = 0;
    size_t i = 0;
    for (; i < n_bytes && text[i] >= '0' && text[i] <= '9'; i++) {
        uint64_t digit = (uint64_t)(text[i] - '0');
        number = number > (UINT64_MAX - digit) / 10 ? UINT64_MAX : number * 10 + digit;
    }
    *ret_number = number;
    return i;
}

static kvt_status set_number(const param *p, const char *text, size_t n_bytes, param_values *values,
                             char *why, size_t why_bytes) {
    uint64_t number;
    if (n_bytes == 0 || take_number(text, n_bytes, &number) != n_bytes)
        return refuse(p, why, why_bytes, "this is no whole number");
    if (number < p->low || number > p->high)
        return refuse(p, why, why_bytes, "it is out of range");
    if (p->flags & PARAM_POWER && (number & (number - 1)) != 0)
        return refuse(p, why, why_bytes, "it is no power of two");
    *number_at(p, values) = number;
    return KVT_OK;
}

static kvt_status set_size(const param *p, const char *text, size_t n_bytes, param_values *values,
                           char *why, size_t why_bytes) {
    uint64_t number;
    size_t n = take_number(text, n_bytes, &number), unit = N_UNITS - 1;
    if (n == 0)
        return refuse(p, why, why_bytes, "this is no size");
    if (n < n_bytes && text[n] == ' ')
        n++;
    if (n < n_bytes) {
        for (unit = 0; unit < N_UNITS; unit++)
            if (strlen(units[unit].name) == n_bytes - n &&
                memcmp(units[unit].name, text + n, n_bytes - n) == 0)
                break;
        if (unit == N_UNITS) {
            /* Printable ASCII alone: a message is one line, and cut anywhere it stays text. */
            char shown[16];
            size_t n_shown = 0;
            for (size_t i = n; i < n_bytes && n_shown < 12; i++)
                shown[n_shown++] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
            return refuse(p, why, why_bytes,
                          "\"%.*s\" is no unit (B, KiB, MiB, GiB and TiB are; no fractions)",
                          (int)n_shown, shown);
        }
    }
    if (number > UINT64_MAX >> units[unit].shift || (number << units[unit].shift) < p->low ||
        (number << units[unit].shift) > p->high)
        return refuse(p, why, why_bytes, "it is out of range");
    *number_at(p, values) = number << units[unit].shift;
    return KVT_OK;
}

static int is_of_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

static kvt_status set_text(const param *p, const char *text, size_t n_bytes, param_values *values,
                           char *why, size_t why_bytes) {
    for (size_t i = 0; i < n_bytes; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return refuse(p, why, why_bytes, "it has a control character in it");
    for (size_t i = 0, n; i < n_bytes; i += n)
        if ((n = utf8_length(text + i, n_bytes - i)) == 0)
            return refuse(p, why, why_bytes, "it is no UTF-8");
    if (n_bytes == 0 && p->flags & PARAM_EMPTY) {
        ((char *)values)[p->offset] = 0;
        return KVT_OK;
    }
    if (p->flags & PARAM_PATH && (n_bytes == 0 || text[0] != '/'))
        return refuse(p, why, why_bytes, "this is no absolute path");
    if (n_bytes < p->low || n_bytes > p->high)
        return refuse(p, why, why_bytes, "it has %zu bytes", n_bytes);
    if (p->flags & PARAM_NAME && text[0] == '.')
        return refuse(p, why, why_bytes, "it begins with \".\"");
    for (size_t i = 0; p->flags & PARAM_NAME && i < n_bytes; i++)
        if (!is_of_name(text[i]))
            return text[i] > ' ' ? refuse(p, why, why_bytes, "it has \"%c\" in it", text[i])
                                 : refuse(p, why, why_bytes, "it has another character in it");
    memcpy((char *)values + p->offset, text, n_bytes);
    ((char *)values)[p->offset + n_bytes] = 0;
    return KVT_OK;
}

static kvt_status set_mode(const param *p, const char *text, size_t n_bytes, param_values *values,
                           char *why, size_t why_bytes) {
    uint64_t mode = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        if (text[i] < '0' || text[i] > '7' || n_bytes > 6)
            return refuse(p, why, why_bytes, "these are no permission bits");
        mode = mode * 8 + (uint64_t)(text[i] - '0');
    }
    /* The owner reads and writes, others at most read: the daemon alone may write the arena. */
    if ((mode & ~UINT64_C(0044)) != 0600)
        return refuse(p, why, why_bytes,
                      "only the daemon may write the arena, and it must be able to");
    *number_at(p, values) = mode;
    return KVT_OK;
}

static kvt_status set_choice(const param *p, const char *text, size_t n_bytes, param_values *values,
                             char *why, size_t why_bytes) {
    for (size_t i = 0; p->choices[i]; i++) {
        if (strlen(p->choices[i]) == n_bytes && memcmp(p->choices[i], text, n_bytes) == 0) {
            *number_at(p, values) = i;
            return KVT_OK;
        }
    }
    return refuse(p, why, why_bytes, "there is no such choice");
}

static kvt_status set_gpus(const param *p, const char *text, size_t n_bytes, param_values *values,
                           char *why, size_t why_bytes) {
    uint64_t gpus = 0, number;
    uint32_t n_gpus = 0;
    if (n_bytes == 3 && memcmp(text, "all", 3) == 0) {
        *number_at(p, values) = PARAM_ALL_GPUS;
        return KVT_OK;
    }
    for (size_t i = 0;; i++) {
        size_t n = take_number(text + i, n_bytes - i, &number);
        if (n == 0 || (i + n < n_bytes && text[i + n] != ','))
            return refuse(p, why, why_bytes, "these are no numbers of GPUs");
        if (number > p->high)
            return refuse(p, why, why_bytes, "it is out of range");
        if (gpus >> number & 1)
            return refuse(p, why, why_bytes, "%" PRIu64 " is there twice", number);
        if (++n_gpus > PARAM_MAX_GPUS)
            return refuse(p, why, why_bytes, "these are too many");
        gpus |= UINT64_C(1) << number;
        i += n;
        if (i == n_bytes)
            break;
    }
    *number_at(p, values) = gpus;
    return KVT_OK;
}

static kvt_status set_bool(const param *p, const char *text, size_t n_bytes, param_values *values,
                           char *why, size_t why_bytes) {
    int yes = n_bytes == 4 && memcmp(text, "true", 4) == 0;
    if (!yes && !(n_bytes == 5 && memcmp(text, "false", 5) == 0))
        return refuse(p, why, why_bytes, "this is neither");
    *number_at(p, values) = (uint64_t)yes;
    return KVT_OK;
}

static kvt_status uid_of_name(const char *text, size_t n_bytes, uint32_t *ret_uid) {
    char name[PARAM_MAX_TEXT_BYTES + 1], buffer[4096];
    struct passwd entry, *found = NULL;
    if (n_bytes == 0 || n_bytes >= sizeof name || memchr(text, 0, n_bytes))
        return KVT_ENOENT;
    memcpy(name, text, n_bytes);
    name[n_bytes] = 0;
    if (getpwnam_r(name, &entry, buffer, sizeof buffer, &found) != 0 || !found)
        return KVT_ENOENT;
    *ret_uid = (uint32_t)found->pw_uid;
    return KVT_OK;
}

static kvt_status gid_of_name(const char *text, size_t n_bytes, uint32_t *ret_gid) {
    char name[PARAM_MAX_TEXT_BYTES + 1], buffer[4096];
    struct group entry, *found = NULL;
    if (n_bytes == 0 || n_bytes >= sizeof name || memchr(text, 0, n_bytes))
        return KVT_ENOENT;
    memcpy(name, text, n_bytes);
    name[n_bytes] = 0;
    if (getgrnam_r(name, &entry, buffer, sizeof buffer, &found) != 0 || !found)
        return KVT_ENOENT;
    *ret_gid = (uint32_t)found->gr_gid;
    return KVT_OK;
}

/* The list, and its length. */
static uint32_t *ids_of(const param *p, param_values *values, uint64_t **ret_n) {
    KVT_ASSERT(p->type == PARAM_UIDS || p->type == PARAM_GIDS);
    *ret_n = p->type == PARAM_UIDS ? &values->n_uids : &values->n_gids;
    return p->type == PARAM_UIDS ? values->uids : values->gids;
}

void param_no_ids(const param *p, param_values *values) {
    uint64_t *n;
    ids_of(p, values, &n);
    *n = 0;
}

kvt_status param_add_id(const param *p, const char *text, size_t n_bytes, param_values *values,
                        char *why, size_t why_bytes) {
    const char *what = p->type == PARAM_UIDS ? "user" : "group";
    uint64_t number, *n;
    uint32_t id, *ids = ids_of(p, values, &n);
    if (*n == PARAM_MAX_UIDS)
        return refuse(p, why, why_bytes, "these are too many");
    if (n_bytes > 0 && take_number(text, n_bytes, &number) == n_bytes) {
        if (number >= UINT32_MAX) /* (uid_t)-1 is nobody */
            return refuse(p, why, why_bytes, "there is no such %s id", what);
        id = (uint32_t)number;
    } else if ((p->type == PARAM_UIDS ? uid_of_name : gid_of_name)(text, n_bytes, &id) != KVT_OK) {
        return refuse(p, why, why_bytes, "this system knows no such %s", what);
    }
    for (uint64_t i = 0; i < *n; i++)
        if (ids[i] == id)
            return refuse(p, why, why_bytes, "%s %u stands in the list twice", what, id);
    ids[(*n)++] = id;
    return KVT_OK;
}

/* "1000,alice" */
static kvt_status set_ids(const param *p, const char *text, size_t n_bytes, param_values *values,
                          char *why, size_t why_bytes) {
    param_no_ids(p, values);
    while (n_bytes > 0) {
        const char *comma = memchr(text, ',', n_bytes);
        size_t n = comma ? (size_t)(comma - text) : n_bytes;
        kvt_status status = param_add_id(p, text, n, values, why, why_bytes);
        if (status != KVT_OK)
            return status;
        text += comma ? n + 1 : n;
        n_bytes -= comma ? n + 1 : n;
    }
    return KVT_OK;
}

kvt_status param_set(const param *p, const char *text, size_t n_bytes, param_values *values,
                     char *why, size_t why_bytes) {
    if (p->flags & PARAM_AUTO && n_bytes == 4 && memcmp(text, "auto", 4) == 0) {
        if (p->type == PARAM_TEXT)
            ((char *)values)[p->offset] = 0;
        else
            *number_at(p, values) = 0;
        return KVT_OK;
    }
    switch (p->type) {
    case PARAM_SIZE:
        return set_size(p, text, n_bytes, values, why, why_bytes);
    case PARAM_COUNT:
    case PARAM_MS:
        return set_number(p, text, n_bytes, values, why, why_bytes);
    case PARAM_TEXT:
        return set_text(p, text, n_bytes, values, why, why_bytes);
    case PARAM_MODE:
        return set_mode(p, text, n_bytes, values, why, why_bytes);
    case PARAM_BOOL:
        return set_bool(p, text, n_bytes, values, why, why_bytes);
    case PARAM_UIDS:
    case PARAM_GIDS:
        return set_ids(p, text, n_bytes, values, why, why_bytes);
    case PARAM_TENANTS:
        if (n_bytes > 0)
            return refuse(p, why, why_bytes, "a file alone can say it");
        *number_at(p, values) = 0;
        return KVT_OK;
    case PARAM_ENUM:
        return set_choice(p, text, n_bytes, values, why, why_bytes);
    case PARAM_GPUS:
        return set_gpus(p, text, n_bytes, values, why, why_bytes);
    }
    return KVT_EINVAL;
}

/* A default as it stands in the table: without its quotes or brackets it is what param_set takes.
 */
static void set_standard(const param *p, param_values *values) {
    char why[256];
    const char *text = p->standard;
    size_t n = strlen(text);
    if (text[0] == '"' || text[0] == '[') {
        text++;
        n -= 2;
    }
    KVT_ASSERT(param_set(p, text, n, values, why, sizeof why) == KVT_OK);
}

void params_init(param_values *ret_values) {
    memset(ret_values, 0, sizeof *ret_values);
    for (size_t i = 0; i < params_n; i++)
        set_standard(&params[i], ret_values);
}

/* --- printing, comparing -----------------------------------------------------------------------
 */

static int print_text(const char *text, char *to, size_t room) {
    size_t n = 0;
    to[n++] = '"';
    /* Control characters were refused; quote and backslash are what is left to escape. */
    for (; *text && n + 4 < room; text++) {
        if (*text == '"' || *text == '\\')
            to[n++] = '\\';
        to[n++] = *text;
    }
    to[n++] = '"';
    to[n] = 0;
    return (int)n;
}

static int print_ids(const param *p, const param_values *values, char *to, size_t room) {
    const uint32_t *ids = p->type == PARAM_UIDS ? values->uids : values->gids;
    uint64_t n_ids = p->type == PARAM_UIDS ? values->n_uids : values->n_gids;
    int n = snprintf(to, room, "[");
    for (uint64_t i = 0; i < n_ids && (size_t)n < room; i++)
        n += snprintf(to + n, room - (size_t)n, "%s%u", i ? ", " : "", ids[i]);
    if ((size_t)n < room)
        n += snprintf(to + n, room - (size_t)n, "]");
    return n;
}

/* One as a number, several as a string. */
static int print_gpus(uint64_t gpus, char *to, size_t room) {
    char list[PARAM_MAX_GPUS * 3 + 1] = "";
    size_t n = 0, n_gpus = 0;
    if (gpus == PARAM_ALL_GPUS)
        return snprintf(to, room, "\"all\"");
    for (unsigned i = 0; i < 64 && n < sizeof list; i++)
        if (gpus >> i & 1)
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%u", n_gpus++ ? "," : "", i);
    return snprintf(to, room, n_gpus == 1 ? "%s" : "\"%s\"", list);
}

size_t param_print(const param *p, const param_values *values, char *to, size_t room) {
    char size[32];
    int n = 0;
    KVT_ASSERT(room >= 8);
    if (p->type == PARAM_UIDS || p->type == PARAM_GIDS)
        n = print_ids(p, values, to, room);
    else if (p->type == PARAM_TENANTS)
        n = snprintf(to, room, number_of(p, values) ? "[...]" : "[]");
    else if (p->type == PARAM_TEXT && p->flags & PARAM_AUTO && !*text_of(p, values))
        n = snprintf(to, room, "\"auto\"");
    else if (p->type == PARAM_TEXT)
        n = print_text(text_of(p, values), to, room);
    else if (p->flags & PARAM_AUTO && number_of(p, values) == 0)
        n = snprintf(to, room, "\"auto\"");
    else if (p->type == PARAM_SIZE && print_size(number_of(p, values), size, sizeof size) > 0)
        n = snprintf(to, room, "\"%s\"", size);
    else if (p->type == PARAM_MODE)
        n = snprintf(to, room, "\"%04o\"", (unsigned)number_of(p, values));
    else if (p->type == PARAM_BOOL)
        n = snprintf(to, room, "%s", number_of(p, values) ? "true" : "false");
    else if (p->type == PARAM_ENUM)
        n = snprintf(to, room, "\"%s\"", p->choices[number_of(p, values)]);
    else if (p->type == PARAM_GPUS)
        n = print_gpus(number_of(p, values), to, room);
    else
        n = snprintf(to, room, "%" PRIu64, number_of(p, values));
    return least((size_t)n, room - 1);
}

int param_equal(const param *p, const param_values *a, const param_values *b) {
    if (p->type == PARAM_TENANTS)
        return number_of(p, a) == number_of(p, b);
    char text_a[1024], text_b[1024]; /* the longest is a list of 64 uids of ten digits */
    param_print(p, a, text_a, sizeof text_a);
    param_print(p, b, text_b, sizeof text_b);
    return strcmp(text_a, text_b) == 0;
}

void param_copy(const param *p, const param_values *from, param_values *to) {
    size_t n_bytes = p->type == PARAM_TEXT ? PARAM_MAX_TEXT_BYTES + 1 : sizeof(uint64_t);
    KVT_ASSERT(p->type != PARAM_UIDS && p->type != PARAM_GIDS && p->type != PARAM_TENANTS);
    memcpy((char *)to + p->offset, (const char *)from + p->offset, n_bytes);
}
