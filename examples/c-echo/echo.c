/* A cartridge for cartdeck in C, with msgpack-c alone: it gives back what it is given. Section numbers are those of
 * protocol/README.md. One thread, one loop: no handler computes, so heartbeats come from the loop's clock. */
#include <errno.h>
#include <fcntl.h>
#include <msgpack.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { HELLO = 0, REQ = 1, CHUNK = 3, END = 4, LOG = 5, ERR = 6, HEARTBEAT = 7, START = 8, STOP = 9, CANCEL = 12, CREDIT = 13 };
enum { MAX_CHUNK = 262144, WINDOW = 16, INLINE = 4096, OPEN = 64, MOST_TEXT = 960, WAITING = 1 << 20, CONTROL = 4 << 20 };
#define ID_LIMIT ((uint64_t)1 << 63)

typedef const msgpack_object *Object;
typedef struct { char *data; size_t size, room; } Bytes;
typedef struct Part { struct Part *next; uint32_t size; int costs; char data[]; } Part;
typedef struct {
    uint64_t id, index_in, index_out, owed, credit;
    int64_t window;
    int used, is_sink, has_stream, is_open, their_end, started;
    Part *first, **last;
} Call;
typedef struct { Object key[32]; int kind; uint64_t id; } Frame; /* the fields by key; what is not named stays out */

static Bytes in, out, manifest;
static Call calls[OPEN];
static uint64_t last_id, strays, stragglers, their_window = WINDOW, max_chunk = MAX_CHUNK;
static int greeted, leaving;

static void put(Bytes *bytes, const void *data, size_t size) {
    if (bytes->size + size > bytes->room) {
        bytes->room = (bytes->size + size) * 2;
        bytes->data = realloc(bytes->data, bytes->room);
        if (!bytes->data) _exit(70);
    }
    memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
}

/* -- frames that leave: a map with `fields` entries behind kind and id, which the caller packs into `body` */

static msgpack_sbuffer body;
static msgpack_packer pack;

static void begin(int kind, uint64_t id, int fields) {
    msgpack_sbuffer_clear(&body);
    msgpack_pack_map(&pack, 2 + fields);
    msgpack_pack_int(&pack, 1); msgpack_pack_int(&pack, kind);
    msgpack_pack_int(&pack, 2); msgpack_pack_uint64(&pack, id);
}
static void number(int key, uint64_t value) { msgpack_pack_int(&pack, key); msgpack_pack_uint64(&pack, value); }
static void text(const char *value) { msgpack_pack_str(&pack, strlen(value)); msgpack_pack_str_body(&pack, value, strlen(value)); }
static void bin(const void *data, size_t size) { msgpack_pack_bin(&pack, size); msgpack_pack_bin_body(&pack, data, size); }
static void named(const char *name, uint64_t value) { text(name); msgpack_pack_uint64(&pack, value); }
static void meta(int fields) { msgpack_pack_int(&pack, 5); msgpack_pack_map(&pack, fields); }
static void leave(void) {
    unsigned char head[4] = { body.size >> 24, body.size >> 16, body.size >> 8, body.size };
    put(&out, head, 4);
    put(&out, body.data, body.size);
    if (out.size > WAITING + CONTROL + max_chunk) _exit(1); /* law 11 */
}
static void say_error(uint64_t id, const char *code, const char *class, const char *message) {
    begin(ERR, id, 1);
    meta(3);
    text("code"); text(code); text("class"); text(class); text("message"); text(message);
    leave();
}
static void breach(const char *code, const char *message) { /* law 1: say why, and leave */
    if (!leaving) say_error(0, code, strcmp(code, "VERSION_MISMATCH") ? "internal" : "environment", message);
    leaving = 1;
}
#define VIOLATION "PROTOCOL_VIOLATION"

/* -- calls */

static Call *find(uint64_t id) {
    for (int i = 0; i < OPEN; i++) if (calls[i].used && calls[i].id == id) return &calls[i];
    return NULL;
}
static int open_calls(void) { int n = 0; for (int i = 0; i < OPEN; i++) n += calls[i].used; return n; }
static void forget(Call *call) {
    while (call->first) { Part *part = call->first; call->first = part->next; free(part); }
    call->used = 0;
}
static void fail(Call *call, const char *code, const char *class, const char *message) {
    say_error(call->id, code, class, message);
    forget(call);
}
#define DAMAGE(call, code, message) do { fail(call, code, "internal", message); return; } while (0)

static void keep(Call *call, const char *data, uint32_t size, int costs) {
    Part *part = malloc(sizeof(Part) + size);
    if (!part) _exit(70);
    *part = (Part){ .size = size, .costs = costs };
    memcpy(part->data, data, size);
    *call->last = part;
    call->last = &part->next;
}
static void grant(Call *call) {
    if (!call->owed || !call->is_open) return;
    begin(CREDIT, call->id, 2); number(11, 0); number(19, call->owed); leave();
    call->window += call->owed;
    call->owed = 0;
}
static void advance(Call *call) { /* send what there is, as far as credit and the pipe go; grant for it; end */
    if (!call->started && !call->is_sink && (call->has_stream || call->their_end)) {
        begin(START, call->id, 1); number(11, 0); leave();
        call->started = 1;
    }
    while (call->first && (call->is_sink || (call->credit && out.size < WAITING))) {
        Part *part = call->first;
        for (uint32_t at = 0; !call->is_sink && at < part->size;) { /* inline arguments fit into one; max_chunk may be small */
            uint32_t size = part->size - at < max_chunk ? part->size - at : max_chunk;
            if (!call->credit) { memmove(part->data, part->data + at, part->size -= at); goto done; }
            begin(CHUNK, call->id, 3); number(11, 0); number(14, call->index_out++);
            msgpack_pack_int(&pack, 6); bin(part->data + at, size); leave();
            call->credit--;
            at += size;
        }
        call->owed += part->costs;
        call->first = part->next;
        if (!call->first) call->last = &call->first;
        free(part);
        if (call->owed >= WINDOW / 2) grant(call);
    }
done:
    if (!call->first) grant(call); /* before it waits */
    if (call->their_end && !call->first) {
        if (call->started) { begin(STOP, call->id, 2); number(11, 0); number(15, call->index_out); leave(); }
        begin(END, call->id, 0); leave();
        forget(call);
    }
}

/* -- frames that come */

static int is_uint(Object o) { return o && o->type == MSGPACK_OBJECT_POSITIVE_INTEGER && o->via.u64 < ID_LIMIT; }
static int is_text(Object o, const char *value) { return o->type == MSGPACK_OBJECT_STR && o->via.str.size == strlen(value) && !memcmp(o->via.str.ptr, value, o->via.str.size); }
static int is_utf8(const unsigned char *s, size_t n) {
    for (size_t i = 0, more; i < n; i += more + 1) {
        more = s[i] < 0x80 ? 0 : s[i] >= 0xc2 && s[i] < 0xe0 ? 1 : s[i] >= 0xe0 && s[i] < 0xf0 ? 2 : s[i] >= 0xf0 && s[i] < 0xf5 ? 3 : n;
        if (more >= n - i) return 0;
        for (size_t k = 1; k <= more; k++) if ((s[i + k] & 0xc0) != 0x80) return 0;
        if ((s[i] == 0xe0 && s[i + 1] < 0xa0) || (s[i] == 0xed && s[i + 1] > 0x9f) || (s[i] == 0xf0 && s[i + 1] < 0x90) || (s[i] == 0xf4 && s[i + 1] > 0x8f)) return 0;
    }
    return 1;
}
static int same(Object a, Object b) { return msgpack_object_equal(*a, *b); }
static int is_sound(Object o, int depth, int in_meta) { /* no extension, no key twice, keys of metas are text, not too deep */
    if (o->type == MSGPACK_OBJECT_EXT || depth > 17) return 0;
    if (o->type == MSGPACK_OBJECT_STR) return is_utf8((const unsigned char *)o->via.str.ptr, o->via.str.size);
    if (o->type == MSGPACK_OBJECT_ARRAY) for (uint32_t i = 0; i < o->via.array.size; i++) if (!is_sound(&o->via.array.ptr[i], depth + 1, in_meta)) return 0;
    if (o->type == MSGPACK_OBJECT_MAP) for (uint32_t i = 0; i < o->via.map.size; i++) {
        Object key = &o->via.map.ptr[i].key;
        if ((in_meta && key->type != MSGPACK_OBJECT_STR) || !is_sound(key, depth + 1, in_meta) || !is_sound(&o->via.map.ptr[i].val, depth + 1, in_meta)) return 0;
        for (uint32_t k = 0; k < i; k++) if (same(key, &o->via.map.ptr[k].key)) return 0;
    }
    return 1;
}
static Object field(Object map, const char *name) {
    for (uint32_t i = 0; map && i < map->via.map.size; i++) if (is_text(&map->via.map.ptr[i].key, name)) return &map->via.map.ptr[i].val;
    return NULL;
}

static const struct { int kind; signed char required[4], allowed[5]; } TABLE[] = { /* section 3 */
    { HELLO, { 5 }, { 0 } }, { REQ, { 10 }, { 5 } }, { CHUNK, { 11, 14, 6 }, { 0 } }, { END, { 0 }, { 5 } }, { LOG, { 5 }, { 0 } },
    { ERR, { 5 }, { 0 } }, { HEARTBEAT, { 0 }, { 5 } }, { START, { 11 }, { 12, 17, 21, 6 } }, { STOP, { 11, 15 }, { 0 } },
    { CANCEL, { 0 }, { 5 } }, { CREDIT, { 11, 19 }, { 0 } } };
static int has_type(int key, Object o) {
    if (key == 5) return o->type == MSGPACK_OBJECT_MAP;
    if (key == 6) return o->type == MSGPACK_OBJECT_BIN;
    if (key == 17) return o->type == MSGPACK_OBJECT_BOOLEAN;
    return key == 10 || key == 12 || key == 21 ? o->type == MSGPACK_OBJECT_STR : is_uint(o);
}
static int read_frame(Object map, Frame *frame) {
    if (map->type != MSGPACK_OBJECT_MAP || map->via.map.size < 2) return 0;
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        Object key = &map->via.map.ptr[i].key, value = &map->via.map.ptr[i].val;
        if (!is_uint(key) || (i == 0 && (key->via.u64 != 1 || !is_uint(value)))) return 0;
        for (uint32_t k = 0; k < i; k++) if (same(key, &map->via.map.ptr[k].key)) return 0;
        if (key->via.u64 < 32) frame->key[key->via.u64] = value;
        if (!is_sound(value, 1, key->via.u64 == 5)) return 0;
    }
    if (!is_uint(frame->key[2])) return 0;
    frame->kind = (int)frame->key[1]->via.u64;
    frame->id = frame->key[2]->via.u64;
    for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++) if (TABLE[i].kind == frame->kind && frame->key[1]->via.u64 < 32) {
        for (int k = 0; k < 4 && TABLE[i].required[k]; k++) if (!frame->key[(int)TABLE[i].required[k]] || !has_type(TABLE[i].required[k], frame->key[(int)TABLE[i].required[k]])) return 0;
        for (int k = 0; k < 5 && TABLE[i].allowed[k]; k++) if (frame->key[(int)TABLE[i].allowed[k]] && !has_type(TABLE[i].allowed[k], frame->key[(int)TABLE[i].allowed[k]])) return 0;
        return 1;
    }
    return 0;
}

static void greet(Frame *frame) {
    static const struct { const char *name; uint64_t value, least, most; } LIMITS[] = {
        { "max_chunk", MAX_CHUNK, 1024, 8388608 }, { "initial_credit", WINDOW, 1, 65536 }, { "max_item", 67108864, 1024, 1073741824 },
        { "inline_arguments", INLINE, 0, 49152 }, { "open_requests", OPEN, 1, 65536 }, { "streams_per_request", 1, 1, 1024 } };
    Object said = frame->key[5], limits = field(said, "limits"), features = field(said, "features");
    if (frame->id || !is_uint(field(said, "protocol")) || !is_uint(field(said, "api")) || !limits || limits->type != MSGPACK_OBJECT_MAP || !features || features->type != MSGPACK_OBJECT_ARRAY) { breach(VIOLATION, "a HELLO without protocol, api, limits or features"); return; }
    begin(HELLO, 0, 1);
    meta(6);
    named("protocol", 1); named("api", 1);
    text("limits"); msgpack_pack_map(&pack, 6);
    for (int i = 0; i < 6; i++) named(LIMITS[i].name, LIMITS[i].value);
    text("features"); msgpack_pack_array(&pack, 3); text("credit"); text("inline-arguments"); text("whole-streams");
    text("manifest"); bin(manifest.data, manifest.size);
    text("software"); text("c-echo 0.1.0");
    leave();
    greeted = 1;
    if (field(said, "protocol")->via.u64 != 1 || field(said, "api")->via.u64 != 1) breach("VERSION_MISMATCH", "this cartridge speaks protocol 1, api 1");
    for (int i = 0; i < 6; i++) {
        Object value = field(limits, LIMITS[i].name);
        if (value && (!is_uint(value) || value->via.u64 < LIMITS[i].least || value->via.u64 > LIMITS[i].most)) breach(VIOLATION, "a limit is out of bounds");
        else if (value && i == 0 && value->via.u64 < max_chunk) max_chunk = value->via.u64;
        else if (value && i == 1) their_window = value->via.u64;
    }
}
static void request(Frame *frame) {
    if (frame->id % 2 || frame->id <= last_id) { breach(VIOLATION, "the id of a request is odd, or not above the last"); return; }
    last_id = frame->id;
    Object cap = frame->key[10], said = frame->key[5], given = field(said, "arguments"), complete = field(said, "complete"), parent = field(said, "parent");
    int is_sink = is_text(cap, "cap:discard;out=media:void");
    Call *call = NULL;
    for (int i = 0; i < OPEN && !call; i++) if (!calls[i].used) call = &calls[i];
    if (!call) { say_error(frame->id, "QUEUE_FULL", "resource", "too many requests are open"); return; }
    *call = (Call){ .id = frame->id, .used = 1, .credit = their_window, .window = WINDOW, .is_sink = is_sink, .last = &call->first };
    if (!is_sink && !is_text(cap, "cap:effect=none") && !is_text(cap, "cap:c-echo")) { fail(call, "NO_SUCH_CAP", "input", "only c-echo, identity and discard are served here"); return; }
    if ((given && given->type != MSGPACK_OBJECT_MAP) || (complete && complete->type != MSGPACK_OBJECT_BOOLEAN) || (parent && !is_uint(parent))) DAMAGE(call, VIOLATION, "a meta field of REQ is of another type");
    for (uint32_t i = 0, size = 0; given && i < given->via.map.size; i++) {
        Object value = &given->via.map.ptr[i].val;
        if (value->type != MSGPACK_OBJECT_BIN) DAMAGE(call, VIOLATION, "an argument that is not bytes");
        if ((size += value->via.bin.size) > INLINE) DAMAGE(call, "FRAME_TOO_LARGE", "arguments above the limit");
        if (!is_text(&given->via.map.ptr[i].key, "data")) { fail(call, "UNKNOWN_ARGUMENT", "input", "the only argument is data"); return; }
        call->has_stream = 1;
        if (value->via.bin.size) keep(call, value->via.bin.ptr, value->via.bin.size, 0);
    }
    call->their_end = complete && complete->via.boolean;
    if (call->their_end && !call->has_stream) { fail(call, "MISSING_ARGUMENT", "input", "data was not given"); return; }
    advance(call);
}
static void stream_start(Call *call, Frame *frame) {
    Object name = frame->key[21], media = frame->key[12], payload = frame->key[6];
    if (call->their_end || frame->key[11]->via.u64 != 0 || call->has_stream) DAMAGE(call, VIOLATION, "a stream that is not the next number, or one too many");
    if ((name ? name->via.str.size : 0) + (media ? media->via.str.size : 0) > MOST_TEXT) DAMAGE(call, "FRAME_TOO_LARGE", "a name that is too long");
    if (!name || !is_text(name, "data")) { fail(call, "UNKNOWN_ARGUMENT", "input", "the only argument is data"); return; }
    call->has_stream = call->is_open = 1;
    if (payload) {
        if (payload->via.bin.size > max_chunk) DAMAGE(call, "FRAME_TOO_LARGE", "a payload above max_chunk");
        if (payload->via.bin.size) keep(call, payload->via.bin.ptr, payload->via.bin.size, 0);
        call->is_open = 0;
    }
}
static void in_call(Call *call, Frame *frame) { /* sections 7 to 9 */
    Object stream = frame->key[11], payload = frame->key[6], reason = field(frame->key[5], "reason");
    switch (frame->kind) {
    case START: stream_start(call, frame); break;
    case CHUNK:
        if (stream->via.u64 != 0 || !call->is_open || frame->key[14]->via.u64 != call->index_in) DAMAGE(call, VIOLATION, "a stream that is not open, or a chunk_index that is not the next");
        if (payload->via.bin.size > max_chunk) DAMAGE(call, "FRAME_TOO_LARGE", "a payload above max_chunk");
        if (--call->window < 0) DAMAGE(call, "CREDIT_VIOLATION", "a CHUNK without credit");
        call->index_in++;
        keep(call, payload->via.bin.ptr, payload->via.bin.size, 1);
        break;
    case STOP:
        if (stream->via.u64 != 0 || !call->is_open || frame->key[15]->via.u64 != call->index_in) DAMAGE(call, VIOLATION, "a stream that is not open, or a chunk_count that is not what came");
        call->is_open = 0;
        break;
    case END:
        if (call->is_open || call->their_end) DAMAGE(call, VIOLATION, "an END with an open stream, or a second one");
        if (!call->has_stream) { fail(call, "MISSING_ARGUMENT", "input", "data was not given"); return; }
        call->their_end = 1;
        break;
    case CANCEL:
        if (reason && reason->type != MSGPACK_OBJECT_STR) DAMAGE(call, VIOLATION, "a reason that is no text");
        fail(call, "CANCELLED", "user", "the host cancelled it");
        return;
    case CREDIT:
        if (!call->started || stream->via.u64 != 0) DAMAGE(call, VIOLATION, "CREDIT for a stream that was never opened");
        if (!frame->key[19]->via.u64 || call->credit + frame->key[19]->via.u64 > (uint64_t)1 << 31) DAMAGE(call, "CREDIT_VIOLATION", "credit out of bounds");
        call->credit += frame->key[19]->via.u64;
        break;
    default: DAMAGE(call, VIOLATION, "a kind that only the responder sends");
    }
    if (call->used) advance(call);
}
static void take(Frame *frame) { /* section 6, law 3 */
    if ((frame->kind == HELLO) == greeted) breach(VIOLATION, "HELLO comes first, and once");
    else if (frame->kind == HELLO) greet(frame);
    else if (frame->id == 0) { if (frame->kind != LOG && frame->kind != ERR) breach(VIOLATION, "a kind that does not speak of the connection"); }
    else if (frame->kind == REQ) request(frame);
    else if (frame->kind == HEARTBEAT) breach(VIOLATION, "a HEARTBEAT of the host");
    else if (find(frame->id)) in_call(find(frame->id), frame);
    else if (frame->id % 2 || frame->id > last_id) strays++; /* we make no requests, so no odd id is ours */
    else if (frame->kind != CREDIT && frame->kind != CANCEL) stragglers++;
}

static int judge_length(size_t size) { /* section 1: the kind is among the first bytes of a body */
    const unsigned char *b = (const unsigned char *)in.data + 4;
    size_t have = in.size - 4, at = 1, most = max_chunk + 1024 > 1048576 ? max_chunk + 1024 : 1048576;
    if (size < 5) { breach(VIOLATION, "a length below 5"); return 0; }
    if (have) at += b[0] == 0xde ? 2 : b[0] == 0xdf ? 4 : 0;
    if (have && (b[0] & 0xf0) != 0x80 && b[0] != 0xde && b[0] != 0xdf) { breach(VIOLATION, "a frame is one map"); return 0; }
    if (have >= at + 2 && b[at] == 1 && b[at + 1] < 0x80) most = b[at + 1] == HELLO ? 1048576 : b[at + 1] == CHUNK || b[at + 1] == START ? max_chunk + 1024 : 65536;
    if (size > most) { breach("FRAME_TOO_LARGE", "a frame is longer than its kind may be"); return 0; }
    return 1;
}
static void receive(void) {
    size_t at = 0;
    while (!leaving && in.size >= 4) {
        const unsigned char *h = (const unsigned char *)in.data;
        size_t size = (size_t)h[0] << 24 | h[1] << 16 | h[2] << 8 | h[3], off = 0;
        if (!judge_length(size) || in.size < 4 + size) break;
        msgpack_unpacked unpacked;
        msgpack_unpacked_init(&unpacked);
        Frame frame = { 0 };
        int done = msgpack_unpack_next(&unpacked, in.data + 4, size, &off);
        if (done != MSGPACK_UNPACK_SUCCESS || off != size || !read_frame(&unpacked.data, &frame)) breach(VIOLATION, "a frame that section 3 does not allow");
        else take(&frame);
        msgpack_unpacked_destroy(&unpacked);
        at = 4 + size;
        memmove(in.data, in.data + at, in.size -= at);
    }
}
static uint64_t now_ms(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000ull + t.tv_nsec / 1000000; }
static void beat(void) {
    unsigned long pages = 0, resident = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    if (statm) { if (fscanf(statm, "%lu %lu", &pages, &resident) != 2) resident = 0; fclose(statm); }
    begin(HEARTBEAT, 0, 1);
    meta(4);
    named("rss_bytes", resident * sysconf(_SC_PAGESIZE)); named("open_requests", open_calls()); named("stragglers", stragglers); named("strays", strays);
    leave();
}

int main(int count, char **words) { /* echo MANIFEST [manifest] */
    FILE *file = count > 1 ? fopen(words[1], "rb") : NULL;
    char block[65536];
    if (!file) { fprintf(stderr, "usage: %s MANIFEST.json [manifest]\n", words[0]); return 2; }
    for (size_t size; (size = fread(block, 1, sizeof block, file)) > 0;) put(&manifest, block, size);
    fclose(file);
    if (count > 2 && !strcmp(words[2], "manifest")) return fwrite(manifest.data, 1, manifest.size, stdout) != manifest.size;
    int from = fcntl(0, F_DUPFD_CLOEXEC, 3), to = fcntl(1, F_DUPFD_CLOEXEC, 3), nothing = open("/dev/null", O_RDONLY);
    dup2(nothing, 0); dup2(2, 1); close(nothing); /* section 10: what is printed lands in the log */
    fcntl(from, F_SETFL, O_NONBLOCK); fcntl(to, F_SETFL, O_NONBLOCK);
    msgpack_sbuffer_init(&body);
    msgpack_packer_init(&pack, &body, msgpack_sbuffer_write);
    double heartbeat_s = getenv("CARTDECK_HEARTBEAT_S") ? atof(getenv("CARTDECK_HEARTBEAT_S")) : 5;
    uint64_t step = heartbeat_s > 0 ? (uint64_t)(heartbeat_s * 1000) : 5000, next = now_ms();
    for (;;) {
        if (greeted && !leaving && now_ms() >= next) { beat(); next = now_ms() + step; }
        for (int i = 0; i < OPEN && out.size < WAITING; i++) if (calls[i].used && calls[i].first) advance(&calls[i]);
        ssize_t sent = out.size ? write(to, out.data, out.size) : 0;
        if (sent < 0 && errno != EAGAIN && errno != EINTR) return 1;
        if (sent > 0) memmove(out.data, out.data + sent, out.size -= sent);
        if (leaving && !out.size) return 1;
        struct pollfd ends[2] = { { leaving ? -1 : from, POLLIN, 0 }, { out.size ? to : -1, POLLOUT, 0 } };
        uint64_t now = now_ms();
        poll(ends, 2, greeted ? (int)(next > now ? next - now : 0) : -1);
        if (!(ends[0].revents & (POLLIN | POLLHUP | POLLERR))) continue;
        ssize_t got = read(from, block, sizeof block);
        if (got == 0) return in.size ? 1 : 0;
        if (got < 0) { if (errno == EAGAIN || errno == EINTR) continue; return 1; }
        put(&in, block, got);
        receive();
    }
}
