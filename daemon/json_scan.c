/* json_scan.c - the strict scanner. One pass, a stack of JSON_MAX_DEPTH, no recursion. */
#include "daemon/json_scan.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_KEY UINT32_MAX

typedef enum expected {
    VALUE,        /* a value; behind a comma of an array, or a colon */
    FIRST_VALUE,  /* a value or ] */
    KEY,          /* a key; behind a comma of an object */
    FIRST_KEY,    /* a key or } */
    COMMA_OR_END, /* , or the bracket that closes */
    NOTHING,      /* the text's own value is complete */
} expected;

typedef struct scanner {
    const char *text;
    char *blanked;
    size_t n_bytes;
    size_t at;
    json_scan *out;
    uint32_t n_open;               /* brackets open */
    uint32_t open[JSON_MAX_DEPTH]; /* the values that they begin */
    uint32_t key_at;               /* of the value that comes next */
    uint32_t key_hash;
} scanner;

/* --- places and errors -------------------------------------------------------------------------
 */

json_place json_place_of(const char *text, size_t n_bytes, size_t at) {
    json_place place = {1, 1};
    for (size_t i = 0; i < at && i < n_bytes; i++) {
        if (text[i] == '\n') {
            place.line++;
            place.column = 1;
        } else if (((unsigned char)text[i] & 0xc0) != 0x80) {
            place.column++;
        }
    }
    return place;
}

static kvt_status fail(scanner *s, size_t at, kvt_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static kvt_status fail(scanner *s, size_t at, kvt_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(s->out->why, sizeof s->out->why, format, args);
    va_end(args);
    s->out->place = json_place_of(s->text, s->n_bytes, at);
    return status;
}

/* The byte at s->at for a message: as it is if it can be shown. */
static const char *shown(const scanner *s, char to[16]) {
    unsigned char c = (unsigned char)s->text[s->at];
    snprintf(to, 16, c > 0x20 && c < 0x7f ? "'%c'" : "byte 0x%02x", c);
    return to;
}

/* --- characters --------------------------------------------------------------------------------
 */

size_t utf8_length(const char *text, size_t n_bytes) {
    const unsigned char *c = (const unsigned char *)text;
    if (n_bytes == 0)
        return 0;
    if (c[0] < 0x80)
        return 1;
    size_t n = c[0] >= 0xf0 ? 4 : c[0] >= 0xe0 ? 3 : 2;
    if (c[0] < 0xc2 || c[0] > 0xf4 || n > n_bytes)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((c[i] & 0xc0) != 0x80)
            return 0;
    if ((c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xed && c[1] > 0x9f) || /* overlong; surrogates */
        (c[0] == 0xf0 && c[1] < 0x90) || (c[0] == 0xf4 && c[1] > 0x8f))   /* overlong; too high */
        return 0;
    return n;
}

static int hex4(const char *text, uint32_t *ret_value) {
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
        char c = text[i];
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a') + 10
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A') + 10
                                                : 16;
        if (digit == 16)
            return 0;
        value = value * 16 + digit;
    }
    *ret_value = value;
    return 1;
}

static size_t put_utf8(uint32_t code, char to[4]) {
    if (code < 0x80) {
        to[0] = (char)code;
        return 1;
    }
    size_t n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; code >>= 6)
        to[i] = (char)(0x80 | (code & 0x3f));
    static const unsigned char lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    to[0] = (char)(lead[n] | code);
    return n;
}

/* The next bytes of a scanned string, escapes resolved: 1 .. 4 of them, or 0 at its end. */
static size_t next_bytes(const char *text, size_t *at, char to[4]) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    uint32_t code, low;
    if (text[*at] == '"')
        return 0;
    if (text[*at] != '\\') {
        to[0] = text[(*at)++];
        return 1;
    }
    char name = text[*at + 1];
    *at += 2;
    if (name != 'u') {
        to[0] = values[strchr(names, name) - names];
        return 1;
    }
    hex4(text + *at, &code);
    *at += 4;
    if (code >= 0xd800 && code <= 0xdbff) {
        hex4(text + *at + 2, &low);
        *at += 6;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    return put_utf8(code, to);
}

size_t json_unescape(const char *text, size_t at, char *to, size_t room) {
    char bytes[4];
    size_t n, n_bytes = 0;
    at++;
    while ((n = next_bytes(text, &at, bytes)) > 0) {
        if (n_bytes + n <= room)
            memcpy(to + n_bytes, bytes, n);
        n_bytes += n;
    }
    return n_bytes;
}

static uint32_t hash_of_string(const char *text, size_t at) {
    uint32_t hash = 2166136261u; /* FNV-1a */
    char bytes[4];
    size_t n;
    at++;
    while ((n = next_bytes(text, &at, bytes)) > 0)
        for (size_t i = 0; i < n; i++)
            hash = (hash ^ (unsigned char)bytes[i]) * 16777619u;
    return hash;
}

static int same_string(const char *text, size_t a, size_t b) {
    char bytes_a[4], bytes_b[4];
    size_t n_a, n_b;
    /* An escape gives a whole character and a plain byte comes alone, so the two may be out of
     * step: compare byte by byte. */
    size_t i_a = 0, i_b = 0;
    a++, b++;
    n_a = next_bytes(text, &a, bytes_a);
    n_b = next_bytes(text, &b, bytes_b);
    while (n_a > 0 && n_b > 0) {
        if (bytes_a[i_a++] != bytes_b[i_b++])
            return 0;
        if (i_a == n_a) {
            n_a = next_bytes(text, &a, bytes_a);
            i_a = 0;
        }
        if (i_b == n_b) {
            n_b = next_bytes(text, &b, bytes_b);
            i_b = 0;
        }
    }
    return n_a == n_b;
}

/* --- space and comments ------------------------------------------------------------------------
 */

static void blank(scanner *s, size_t from) {
    for (size_t i = from; i < s->at; i++)
        if (s->text[i] != '\n')
            s->blanked[i] = ' ';
}

static kvt_status skip_comment(scanner *s) {
    size_t from = s->at;
    int is_block = s->text[s->at + 1] == '*';
    s->at += 2;
    for (;;) {
        if (s->at == s->n_bytes || (!is_block && s->text[s->at] == '\n'))
            break;
        if (is_block && s->at + 1 < s->n_bytes && s->text[s->at] == '*' &&
            s->text[s->at + 1] == '/') {
            s->at += 2;
            blank(s, from);
            return KVT_OK;
        }
        size_t n = utf8_length(s->text + s->at, s->n_bytes - s->at);
        if (n == 0)
            return fail(s, s->at, KVT_ESYNTAX,
                        "this comment has bytes in it that are no UTF-8; save the file as UTF-8");
        s->at += n;
    }
    if (is_block)
        return fail(s, from, KVT_ESYNTAX, "this comment does not end; close it with */");
    blank(s, from);
    return KVT_OK;
}

static kvt_status skip_space(scanner *s) {
    while (s->at < s->n_bytes) {
        char c = s->text[s->at];
        if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
            s->at++;
            continue;
        }
        if (c != '/' || s->at + 1 == s->n_bytes ||
            (s->text[s->at + 1] != '/' && s->text[s->at + 1] != '*'))
            return KVT_OK;
        kvt_status status = skip_comment(s);
        if (status != KVT_OK)
            return status;
    }
    return KVT_OK;
}

/* --- strings, numbers, words -------------------------------------------------------------------
 */

static kvt_status scan_escape(scanner *s) {
    uint32_t code, low;
    size_t left = s->n_bytes - s->at;
    if (left < 2 || !strchr("\"\\/bfnrtu", s->text[s->at + 1]) || !s->text[s->at + 1])
        return fail(s, s->at, KVT_ESYNTAX,
                    "this escape is not known; write \\\\ for a backslash itself");
    if (s->text[s->at + 1] != 'u') {
        s->at += 2;
        return KVT_OK;
    }
    if (left < 6 || !hex4(s->text + s->at + 2, &code))
        return fail(s, s->at, KVT_ESYNTAX, "\\u needs four hexadecimal digits");
    if (code == 0)
        return fail(s, s->at, KVT_ESYNTAX, "\\u0000 is not allowed: no value here has NUL in it");
    if (code >= 0xd800 && code <= 0xdfff) {
        int is_pair = code <= 0xdbff && left >= 12 && s->text[s->at + 6] == '\\' &&
                      s->text[s->at + 7] == 'u' && hex4(s->text + s->at + 8, &low) &&
                      low >= 0xdc00 && low <= 0xdfff;
        if (!is_pair)
            return fail(s, s->at, KVT_ESYNTAX,
                        "half of a surrogate pair; write the character itself, in UTF-8");
        s->at += 6;
    }
    s->at += 6;
    return KVT_OK;
}

/* From the opening quote to behind the closing one. */
static kvt_status scan_string(scanner *s) {
    size_t from = s->at++;
    for (;;) {
        if (s->at == s->n_bytes)
            return fail(s, from, KVT_ESYNTAX, "this string does not end; close it with \"");
        unsigned char c = (unsigned char)s->text[s->at];
        if (c == '"')
            break;
        if (c == '\n' || c == '\r')
            return fail(s, s->at, KVT_ESYNTAX,
                        "a line ends within a string; close it with \", or write \\n");
        if (c < 0x20)
            return fail(s, s->at, KVT_ESYNTAX,
                        "a string has byte 0x%02x in it; write \\u%04x, or leave it out", c, c);
        if (c == '\\') {
            kvt_status status = scan_escape(s);
            if (status != KVT_OK)
                return status;
            continue;
        }
        size_t n = utf8_length(s->text + s->at, s->n_bytes - s->at);
        if (n == 0)
            return fail(s, s->at, KVT_ESYNTAX,
                        "a string has bytes in it that are no UTF-8; save the file as UTF-8");
        s->at += n;
    }
    s->at++;
    return KVT_OK;
}

static size_t scan_digits(scanner *s) {
    size_t from = s->at;
    while (s->at < s->n_bytes && s->text[s->at] >= '0' && s->text[s->at] <= '9')
        s->at++;
    return s->at - from;
}

static int take(scanner *s, const char *any_of) {
    if (s->at == s->n_bytes || !s->text[s->at] || !strchr(any_of, s->text[s->at]))
        return 0;
    s->at++;
    return 1;
}

static kvt_status scan_number(scanner *s) {
    size_t from = s->at;
    char copy[400]; /* the longest double without an exponent has 309 digits */
    take(s, "-");
    size_t whole = s->at, n_whole = scan_digits(s);
    if (n_whole == 0)
        return fail(s, from, KVT_ESYNTAX, "a number needs a digit behind its minus");
    if (n_whole > 1 && s->text[whole] == '0')
        return fail(s, from, KVT_ESYNTAX, "a number must not begin with 0; leave the zeros out");
    if (take(s, ".") && scan_digits(s) == 0)
        return fail(s, from, KVT_ESYNTAX, "a number needs a digit behind its point");
    if (take(s, "eE")) {
        take(s, "+-");
        if (scan_digits(s) == 0)
            return fail(s, from, KVT_ESYNTAX, "a number needs a digit in its exponent");
    }
    if (s->at - from >= sizeof copy)
        return fail(s, from, KVT_ESYNTAX, "this number has %zu digits, which is too long",
                    s->at - from);
    memcpy(copy, s->text + from, s->at - from);
    copy[s->at - from] = 0;
    errno = 0;
    (void)strtod(copy, NULL);
    if (errno == ERANGE)
        return fail(s, from, KVT_ESYNTAX, "no number can be as large or as small as this");
    return KVT_OK;
}

static kvt_status scan_word(scanner *s) {
    static const char *const words[] = {"true", "false", "null"};
    char c[16];
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if (s->n_bytes - s->at >= n && memcmp(s->text + s->at, words[i], n) == 0) {
            s->at += n;
            return KVT_OK;
        }
    }
    return fail(s, s->at, KVT_ESYNTAX,
                "%s where a value is needed: a string in double quotes, a number, true, false, "
                "null, [ or {",
                shown(s, c));
}

/* --- the structure -----------------------------------------------------------------------------
 */

static kvt_status add_value(scanner *s) {
    json_scan *out = s->out;
    if (out->n_values == JSON_MAX_VALUES)
        return fail(s, s->at, KVT_ELIMIT, "there are more than %d values", JSON_MAX_VALUES);
    uint32_t first = s->n_open ? s->open[s->n_open - 1] + 1 : 0;
    for (uint32_t i = first; s->key_at != NO_KEY && i < out->n_values; i++) {
        const json_value *other = &out->values[i];
        if (other->depth == s->n_open && other->key_hash == s->key_hash &&
            same_string(s->text, other->key_at, s->key_at)) {
            json_place place = json_place_of(s->text, s->n_bytes, other->key_at);
            return fail(s, s->key_at, KVT_ESYNTAX,
                        "this key is there already, in line %u, column %u; remove one of the two",
                        place.line, place.column);
        }
    }
    out->values[out->n_values++] = (json_value){.at = (uint32_t)s->at,
                                                .n_bytes = 1,
                                                .key_at = s->key_at,
                                                .key_hash = s->key_hash,
                                                .depth = s->n_open};
    s->key_at = NO_KEY;
    return KVT_OK;
}

static kvt_status scan_value(scanner *s, expected *state) {
    kvt_status status = add_value(s);
    char c = s->text[s->at];
    if (status != KVT_OK)
        return status;
    if (c == '{' || c == '[') {
        if (s->n_open == JSON_MAX_DEPTH)
            return fail(s, s->at, KVT_ELIMIT, "nested deeper than %d", JSON_MAX_DEPTH);
        s->open[s->n_open++] = s->out->n_values - 1;
        s->at++;
        *state = c == '{' ? FIRST_KEY : FIRST_VALUE;
        return KVT_OK;
    }
    json_value *value = &s->out->values[s->out->n_values - 1];
    status = c == '"'                             ? scan_string(s)
             : c == '-' || (c >= '0' && c <= '9') ? scan_number(s)
                                                  : scan_word(s);
    if (status != KVT_OK)
        return status;
    value->n_bytes = (uint32_t)(s->at - value->at);
    *state = s->n_open ? COMMA_OR_END : NOTHING;
    return KVT_OK;
}

static kvt_status scan_key(scanner *s, expected *state) {
    char c[16];
    if (s->text[s->at] != '"')
        return fail(s, s->at, KVT_ESYNTAX, "%s where a key in double quotes is needed",
                    shown(s, c));
    s->key_at = (uint32_t)s->at;
    kvt_status status = scan_string(s);
    if (status != KVT_OK)
        return status;
    s->key_hash = hash_of_string(s->text, s->key_at);
    status = skip_space(s);
    if (status != KVT_OK)
        return status;
    if (!take(s, ":"))
        return fail(s, s->at, KVT_ESYNTAX, "a colon is needed here, between key and value");
    *state = VALUE;
    return KVT_OK;
}

static int in_object(const scanner *s) {
    return s->text[s->out->values[s->open[s->n_open - 1]].at] == '{';
}

static kvt_status close_bracket(scanner *s, expected *state) {
    s->at++;
    s->n_open--;
    *state = s->n_open ? COMMA_OR_END : NOTHING;
    return KVT_OK;
}

static kvt_status scan_separator(scanner *s, expected *state) {
    char c[16], end = in_object(s) ? '}' : ']';
    if (s->text[s->at] == end)
        return close_bracket(s, state);
    if (!take(s, ","))
        return fail(s, s->at, KVT_ESYNTAX, "%s where a comma or %c is needed", shown(s, c), end);
    *state = in_object(s) ? KEY : VALUE;
    return KVT_OK;
}

/* One step from s->at, which is not the end of the text. */
static kvt_status scan_step(scanner *s, expected *state) {
    char c = s->text[s->at], shows[16];
    int behind_comma = s->key_at == NO_KEY && s->n_open > 0;
    switch (*state) {
    case FIRST_VALUE:
        return c == ']' ? close_bracket(s, state) : scan_value(s, state);
    case FIRST_KEY:
        return c == '}' ? close_bracket(s, state) : scan_key(s, state);
    case VALUE:
        if (c == ']' && behind_comma)
            return fail(s, s->at, KVT_ESYNTAX, "a comma in front of ]; remove it");
        return scan_value(s, state);
    case KEY:
        if (c == '}')
            return fail(s, s->at, KVT_ESYNTAX, "a comma in front of }; remove it");
        return scan_key(s, state);
    case COMMA_OR_END:
        return scan_separator(s, state);
    case NOTHING:
        break;
    }
    return fail(s, s->at, KVT_ESYNTAX, "%s behind the end of the value; remove what is there",
                shown(s, shows));
}

kvt_status json_scan_text(const char *text, size_t n_bytes, char *ret_blanked,
                          json_scan *ret_scan) {
    scanner s = {.text = text,
                 .blanked = ret_blanked,
                 .n_bytes = n_bytes,
                 .out = ret_scan,
                 .key_at = NO_KEY};
    expected state = VALUE;
    ret_scan->n_values = 0;
    if (n_bytes > JSON_MAX_BYTES) {
        ret_scan->place = (json_place){1, 1};
        snprintf(ret_scan->why, sizeof ret_scan->why, "it has %zu bytes; at most %d are read",
                 n_bytes, JSON_MAX_BYTES);
        return KVT_ELIMIT;
    }
    memcpy(ret_blanked, text, n_bytes);
    if (n_bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        return fail(&s, 0, KVT_ESYNTAX, "it begins with a byte order mark; save it without one");
    for (;;) {
        kvt_status status = skip_space(&s);
        if (status == KVT_OK && s.at == n_bytes)
            break;
        if (status == KVT_OK)
            status = scan_step(&s, &state);
        if (status != KVT_OK)
            return status;
    }
    if (s.n_open > 0)
        return fail(&s, ret_scan->values[s.open[s.n_open - 1]].at, KVT_ESYNTAX,
                    "this %c is never closed", text[ret_scan->values[s.open[s.n_open - 1]].at]);
    if (state != NOTHING)
        return fail(&s, n_bytes, KVT_ESYNTAX, "it is empty; the least is {}");
    return KVT_OK;
}
