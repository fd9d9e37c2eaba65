/*
 * manual.c - makes kvtrunk(3) of kvtrunk.h and of the parts that it includes, at build: the header
 * is the manual, and the page says the same, whatever is added there.
 *
 *     kvtrunk_manual kvtrunk.h kvtrunk_view.h example.c >kvtrunk.3
 *
 * How the header is read: a comment in the first column belongs to the declarations below it. A
 * comment that begins with a rule (of dashes) begins a section, whose title is its next line. In
 * comments an empty line ends a paragraph, what is indented by four or more is left as it is, "- "
 * is a bullet, a line of capitals alone is a section too. What cannot be read so is an error.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LINES = 2000, LINE_BYTES = 256 };

static char lines[MAX_LINES][LINE_BYTES];
static int n_lines;
static int verbatim; /* inside of .nf */
static int bullets;  /* inside of .IP */

static void fail(int line, const char *what) {
    fprintf(stderr, "kvtrunk_manual: line %d: %s\n", line + 1, what);
    exit(1);
}

static void read_lines(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) {
        perror(path);
        exit(1);
    }
    for (n_lines = 0; n_lines < MAX_LINES && fgets(lines[n_lines], LINE_BYTES, file); n_lines++) {
        if (!strchr(lines[n_lines], '\n'))
            fail(n_lines, "too long");
        lines[n_lines][strcspn(lines[n_lines], "\n")] = 0;
    }
    if (n_lines == MAX_LINES)
        fail(n_lines, "too many lines");
    fclose(file);
}

static int begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

/* --- roff ---------------------------------------------------------------------------------------
 */

static void put_text(const char *text) {
    if (*text == '.' || *text == '\'')
        fputs("\\&", stdout);
    for (; *text; text++) {
        if (*text == '\\')
            fputs("\\e", stdout);
        else if (*text == '-' && verbatim)
            fputs("\\-", stdout);
        else if (*text == '"' && !verbatim)
            fputs("\\(dq", stdout);
        else
            putchar(*text);
    }
    putchar('\n');
}

static void set_verbatim(int on) {
    if (on != verbatim)
        puts(on ? ".PP\n.RS 4\n.nf" : ".fi\n.RE");
    verbatim = on;
}

static void put_code(const char *text) {
    set_verbatim(1);
    put_text(text);
}

static void heading(const char *title) {
    set_verbatim(0);
    bullets = 0;
    printf(".SH \"");
    for (; *title; title++)
        putchar(toupper((unsigned char)*title));
    puts("\"");
}

/* --- comments -----------------------------------------------------------------------------------
 */

/* The text of a comment's line, without its stars; *ret_ends: the comment ends in it. */
static const char *comment_text(const char *line, char to[LINE_BYTES], int *ret_ends) {
    size_t n;
    if (begins(line, "/*") || begins(line, " *"))
        line += 2;
    if (*line == ' ')
        line++;
    snprintf(to, LINE_BYTES, "%s", line);
    n = strlen(to);
    *ret_ends = n >= 1 && to[n - 1] == '/' && (n == 1 || to[n - 2] == '*');
    if (*ret_ends)
        n -= n == 1 ? 1 : 2;
    while (n > 0 && to[n - 1] == ' ')
        n--;
    to[n] = 0;
    return to;
}

static int is_rule(const char *text) {
    return begins(text, "--------");
}

/* A heading within the file's own comment. */
static int is_capitals(const char *text) {
    size_t n = strlen(text);
    return n > 2 && strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ ") == n;
}

static void put_line(const char *text) {
    size_t indent = strspn(text, " ");
    if (!*text) {
        if (!verbatim)
            puts(".PP");
        else
            putchar('\n');
        bullets = 0;
    } else if (indent >= 4 && !bullets) {
        put_code(text + 4);
    } else if (begins(text, "- ")) {
        set_verbatim(0);
        puts(".IP \\(bu 3");
        bullets = 1;
        put_text(text + 2);
    } else {
        set_verbatim(0);
        put_text(text + indent);
    }
}

/* From `line`, where a comment begins, up to its end; returns the line behind it. With print 0 it
 * is only passed over. */
static int put_comment(int line, int print) {
    char text[LINE_BYTES];
    int ends = 0, title = 0, first = line;
    bullets = 0;
    if (print)
        puts(".PP");
    while (!ends) {
        if (line == n_lines)
            fail(first, "the comment does not end");
        const char *at = comment_text(lines[line], text, &ends);
        if (print && is_rule(at))
            title = line == first;
        else if (print && (title || is_capitals(at)))
            heading(at), title = 0;
        else if (print && !(line == first && !*at))
            put_line(at);
        line++;
    }
    if (print)
        set_verbatim(0);
    return line;
}

/* --- declarations -------------------------------------------------------------------------------
 */

static int is_code(const char *line) {
    static const char *const others[] = {"#if",          "#endif", "#include", "#define KVTRUNK_",
                                         "extern \"C\"", "/*"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (begins(line, others[i]))
            return 0;
    return *line && strcmp(line, "}") != 0;
}

/* The name of the function whose declaration begins there; 0: none does. */
static int function_name(const char *line, char to[LINE_BYTES]) {
    const char *open = strchr(line, '('), *at = open;
    if (!open || isspace((unsigned char)*line) || begins(line, "typedef"))
        return 0;
    while (at > line && (isalnum((unsigned char)at[-1]) || at[-1] == '_'))
        at--;
    snprintf(to, LINE_BYTES, "%.*s", (int)(open - at), at);
    return begins(to, "kvt_");
}

/* Where the declarations that begin at `line` end: at the next comment of the first column, or at
 * two things that are none. */
static int code_end(int line) {
    while (line < n_lines && !begins(lines[line], "/*") && (is_code(lines[line]) || !*lines[line]))
        line++;
    return line;
}

static void put_names(int from, int end) {
    char name[LINE_BYTES];
    int n = 0;
    for (int i = from; i < end; i++)
        if (function_name(lines[i], name))
            printf("%s%s", n++ ? ", " : ".SS \"", name);
    if (n)
        puts("\"");
}

static void put_declarations(int from, int end) {
    while (end > from && !*lines[end - 1])
        end--;
    if (from == end)
        return;
    for (int i = from; i < end; i++)
        put_code(lines[i]);
    set_verbatim(0);
}

/* A comment and the declarations below it, those first if they are of functions. */
static int put_item(int line) {
    int code = put_comment(line, 0), end = code_end(code), has_function = 0;
    char name[LINE_BYTES];
    for (int i = code; i < end; i++)
        has_function |= function_name(lines[i], name);
    if (has_function) {
        put_names(code, end);
        put_declarations(code, end);
    }
    put_comment(line, 1);
    if (!has_function)
        put_declarations(code, end);
    return end;
}

/* --- the page -----------------------------------------------------------------------------------
 */

static void put_synopsis(void) {
    heading("synopsis");
    put_code("#include <kvtrunk.h>");
    put_code("");
    put_code("cc worker.c $(pkg-config --cflags --libs kvtrunk)");
    set_verbatim(0);
}

/* From the line on, which no comment encloses. */
static void put_items(int line) {
    while (line < n_lines) {
        if (begins(lines[line], "/*"))
            line = put_item(line);
        else if (!is_code(lines[line]))
            line++;
        else if (begins(lines[line], "typedef struct ") && strchr(lines[line], ';'))
            line++; /* an opaque type: what has it as an argument tells */
        else if (begins(lines[line], "#define KVT_VERSION") || begins(lines[line], "typedef "))
            put_declarations(line, code_end(line)), line = code_end(line);
        else
            fail(line, "a declaration without a comment");
    }
}

static void put_header(void) {
    puts(".TH KVTRUNK 3 \"\" \"kvtrunk\" \"Library functions\"");
    heading("name");
    puts("kvtrunk \\- share encoded KV pages of prompts between inference workers");
    put_synopsis();
    heading("description");
    put_items(put_comment(0, 1));
}

/* Of a part its own first comment, which says whose part it is, is left out. */
static void put_part(const char *path) {
    read_lines(path);
    put_items(put_comment(0, 0));
}

static void put_example(const char *path) {
    read_lines(path);
    heading("example");
    for (int i = 0; i < n_lines; i++)
        put_code(lines[i]);
    set_verbatim(0);
    heading("see also");
    puts(".BR kvtrunk (1),\n.BR kvtrunkd (8),\n.BR kvtrunkd.conf (5)");
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: kvtrunk_manual kvtrunk.h [PART.h ...] example.c\n");
        return 2;
    }
    read_lines(argv[1]);
    put_header();
    for (int i = 2; i < argc - 1; i++)
        put_part(argv[i]);
    put_example(argv[argc - 1]);
    return fflush(stdout) == 0 ? 0 : 1;
}
