/* edit.c - line editing, history and Tab at the prompt, on libedit.
 *
 * libedit asks for its characters through next_char, which waits in rle_cli_wait_input: so
 * remote calls are served between two keys. The terminal is in raw mode only inside
 * el_gets; while a chunk runs it is as the user left it, and Ctrl-C raises SIGINT.
 *
 * The history is a plain file, one line an entry, appended to at each line, so that two
 * prompts and a crash lose nothing. It lies in $XDG_STATE_HOME/rlengine/history, or under
 * ~/.local/state. */
#include "cli/cli_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <limits.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include "base/mem.h"

enum { HISTORY_KEPT = 1000, HISTORY_CUT_ABOVE = 2 * HISTORY_KEPT };

static struct {
    lua_State *L;
    char *line; /* the last one */
    int prompt_table;
    EditLine *el;
    History *history;
    const char *prompt;
    char history_path[PATH_MAX]; /* "" = not kept */
    bool cancelled;
    int columns;
} edit;

/* ---- history ---- */

/* The path, its folders made; "" where there is no home or it cannot be written. */
static void history_find(char *path, size_t size)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = 0;
    path[0] = '\0';
    if (state && state[0] == '/')
        n = snprintf(path, size, "%s/rlengine/history", state);
    else if (home && home[0] == '/')
        n = snprintf(path, size, "%s/.local/state/rlengine/history", home);
    if (n <= 0 || (size_t)n >= size) {
        path[0] = '\0';
        return;
    }
    for (char *p = path + 1; *p; p++) {
        if (*p != '/') continue;
        *p = '\0';
        int failed = mkdir(path, 0700) != 0 && errno != EEXIST;
        *p = '/';
        if (failed) {
            path[0] = '\0';
            return;
        }
    }
}

static void history_add(const char *line)
{
    HistEvent event;
    history(edit.history, &event, H_ENTER, line);
}

/* Write the newest entries to a new file and put it in the place of the old one. */
static void history_cut(void)
{
    char fresh[PATH_MAX + 16];
    snprintf(fresh, sizeof fresh, "%s.%ld", edit.history_path, (long)getpid());
    int fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!f) return;
    HistEvent event;
    for (int r = history(edit.history, &event, H_LAST); r == 0;
         r = history(edit.history, &event, H_PREV))
        fprintf(f, "%s\n", event.str);
    bool good = !ferror(f);
    if (fclose(f) != 0 || !good || rename(fresh, edit.history_path) != 0) unlink(fresh);
}

static void history_load(void)
{
    FILE *f = fopen(edit.history_path, "re");
    if (!f) return;
    char *line = NULL;
    size_t capacity = 0, count = 0;
    for (ssize_t n; (n = getline(&line, &capacity, f)) > 0; count++) {
        if (line[n - 1] == '\n') line[n - 1] = '\0';
        history_add(line);
    }
    free(line);
    fclose(f);
    if (count > HISTORY_CUT_ABOVE) history_cut();
}

static void history_append(const char *line)
{
    if (!edit.history_path[0]) return;
    int fd = open(edit.history_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) return;
    dprintf(fd, "%s\n", line); /* one write: lines of two prompts do not mix */
    close(fd);
}

/* ---- Tab ---- */

/* Call prompt.complete(text, columns) in protected mode: pushes insert, list. */
static bool ask_completion(lua_State *L, const char *text, size_t size)
{
    lua_getfield(L, edit.prompt_table, "complete");
    lua_pushlstring(L, text, size);
    lua_pushinteger(L, edit.columns);
    if (lua_pcall(L, 2, 2, 0) == 0) return true;
    lua_pop(L, 1);
    return false;
}

static unsigned char complete(EditLine *el, int ch)
{
    (void)ch;
    lua_State *L = edit.L;
    const LineInfo *line = el_line(el);
    if (!ask_completion(L, line->buffer, (size_t)(line->cursor - line->buffer)))
        return CC_ERROR;
    const char *insert = lua_tostring(L, -2), *list = lua_tostring(L, -1);
    unsigned char result = CC_ERROR;
    if (insert && *insert) {
        if (el_insertstr(el, insert) == 0) result = CC_REFRESH;
    } else if (list) {
        fprintf(stdout, "\n%s\n", list);
        fflush(stdout);
        result = CC_REDISPLAY;
    }
    lua_pop(L, 2);
    return result;
}

/* ---- reading ---- */

static int next_char(EditLine *el, wchar_t *out)
{
    mbstate_t state = {0};
    for (;;) {
        rle_wait_result got = rle_cli_wait_input(edit.L);
        if (got == RLE_WAIT_INTERRUPT) {
            edit.cancelled = true;
            errno = EINTR;
            return -1;
        }
        if (got == RLE_WAIT_SIGNAL) {
            el_set(el, EL_PREP_TERM, 1); /* a shell may have changed it while we stood */
            edit.columns = rle_cli_columns();
            el_resize(el);
            el_set(el, EL_REFRESH);
            continue;
        }
        char byte;
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return (int)n;
        size_t used = mbrtowc(out, &byte, 1, &state);
        if (used == (size_t)-2) continue; /* more bytes to come */
        if (used != (size_t)-1) return 1;
        memset(&state, 0, sizeof state); /* not a character: drop it */
    }
}

static char *show_prompt(EditLine *el)
{
    (void)el;
    return (char *)edit.prompt;
}

bool rle_cli_edit_open(lua_State *L, int prompt_table)
{
    /* Characters beyond ASCII; never the numeric locale, which Lua's numbers depend on. */
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");

    edit.L = L;
    edit.prompt_table = prompt_table;
    edit.prompt = "> ";
    edit.columns = rle_cli_columns();
    edit.el = el_init(RLE_PROGRAM, stdin, stdout, stderr);
    if (!edit.el) return false;
    el_set(edit.el, EL_PROMPT, show_prompt);
    el_set(edit.el, EL_EDITOR, "emacs");
    el_set(edit.el, EL_SIGNAL, 0);
    el_set(edit.el, EL_GETCFN, next_char);
    /* The narrow call would keep copies of the texts that nobody frees. */
    el_wset(edit.el, EL_ADDFN, L"rlengine-complete", L"complete a name", complete);
    el_set(edit.el, EL_BIND, "^I", "rlengine-complete", NULL);
    el_set(edit.el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(edit.el, EL_BIND, "\033[1;5D", "ed-prev-word", NULL);
    el_set(edit.el, EL_BIND, "\033[1;5C", "em-next-word", NULL);

    edit.history = history_init();
    if (edit.history) {
        HistEvent event;
        history(edit.history, &event, H_SETSIZE, HISTORY_KEPT);
        history(edit.history, &event, H_SETUNIQUE, 1);
        el_set(edit.el, EL_HIST, history, edit.history);
        history_find(edit.history_path, sizeof edit.history_path);
        if (edit.history_path[0]) history_load();
    }
    el_source(edit.el, NULL); /* the user's ~/.editrc */
    return true;
}

rle_line_result rle_cli_edit_line(const char *prompt, const char **line)
{
    int count = 0;
    edit.prompt = prompt;
    edit.cancelled = false;
    el_set(edit.el, EL_PREP_TERM, 1); /* or what is typed now is echoed twice */
    const char *text = el_gets(edit.el, &count);
    if (edit.cancelled) return RLE_LINE_CANCELLED;
    if (!text || count <= 0) return RLE_LINE_END;

    char *copy = rle_strdup(text);
    if (!copy) return RLE_LINE_END;
    rle_free(edit.line);
    edit.line = copy;
    copy[strcspn(copy, "\n")] = '\0';
    if (copy[strspn(copy, " \t")] && edit.history) {
        history_add(copy);
        history_append(copy);
    }
    *line = copy;
    return RLE_LINE;
}

void rle_cli_edit_close(void)
{
    rle_free(edit.line);
    if (edit.history) history_end(edit.history);
    el_end(edit.el);
    memset(&edit, 0, sizeof edit);
}
