/* A loopback S3 for benchmarks/staging.py: objects in memory, one thread per connection, no signature checks.
 *
 * It answers what transfer clients ask: PUT, GET (with Range), HEAD, DELETE, multipart uploads (create, part,
 * list parts, complete, abort). What it is for is to be faster than its client, so that a benchmark measures
 * the client: a body is received straight into its place, an object is the list of its parts, nothing is
 * copied or hashed. ETags are opaque. Not a store: everything is gone with the process.
 *
 *     gcc -O2 -pthread s3_server.c -o s3_server && ./s3_server      prints its port
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <malloc.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define HEAD_LIMIT 32768
#define BUCKETS 65536
#define MAX_PARTS 10001

typedef struct {
    char *data;
    size_t size;
} Part;

/* Shared by the table and by whoever is sending it at the moment. */
typedef struct {
    atomic_int holders;
    size_t size;
    int count;
    Part parts[];
} Object;

typedef struct Entry {
    struct Entry *next;
    Object *object;
    char key[];
} Entry;

typedef struct Upload {
    struct Upload *next;
    unsigned long id;
    Part parts[MAX_PARTS];
} Upload;

static Entry *table[BUCKETS];
static Upload *uploads;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_ulong last_id;

typedef struct {
    int socket;
    size_t have, head; /* bytes in the buffer; of them, the request's head */
    char buffer[HEAD_LIMIT + 1];
    char method[8], target[4096];
    size_t length;
    int expects;
    long first, last; /* of a Range; -1: not given */
} Request;

static void *need(void *memory) {
    if (memory == NULL) {
        fputs("s3_server: out of memory\n", stderr);
        abort();
    }
    return memory;
}

static unsigned hash(const char *key) {
    unsigned value = 2166136261u;
    for (; *key; key++) value = (value ^ (unsigned char)*key) * 16777619u;
    return value % BUCKETS;
}

static void release(Object *object) {
    if (object == NULL || atomic_fetch_sub(&object->holders, 1) != 1) return;
    for (int i = 0; i < object->count; i++) free(object->parts[i].data);
    free(object);
}

static Object *make_object(const Part *parts, int count) {
    Object *object = need(malloc(sizeof(Object) + sizeof(Part) * (size_t)count));
    object->size = 0;
    object->count = count;
    atomic_init(&object->holders, 1);
    for (int i = 0; i < count; i++) {
        object->parts[i] = parts[i];
        object->size += parts[i].size;
    }
    return object;
}

/* Takes over `object`; NULL deletes. */
static void store(const char *key, Object *object) {
    Object *old = NULL;
    pthread_mutex_lock(&lock);
    Entry **place = &table[hash(key)];
    while (*place && strcmp((*place)->key, key)) place = &(*place)->next;
    if (*place) {
        old = (*place)->object;
        (*place)->object = object;
    } else if (object) {
        *place = need(calloc(1, sizeof(Entry) + strlen(key) + 1));
        strcpy((*place)->key, key);
        (*place)->object = object;
    }
    pthread_mutex_unlock(&lock);
    release(old);
}

static Object *hold(const char *key) {
    Object *object = NULL;
    pthread_mutex_lock(&lock);
    for (Entry *entry = table[hash(key)]; entry; entry = entry->next)
        if (!strcmp(entry->key, key)) object = entry->object;
    if (object) atomic_fetch_add(&object->holders, 1);
    pthread_mutex_unlock(&lock);
    return object;
}

/* With the lock held. */
static Upload **find_upload(unsigned long id) {
    Upload **place = &uploads;
    while (*place && (*place)->id != id) place = &(*place)->next;
    return place;
}

static int send_all(int socket, const char *data, size_t size) {
    while (size) {
        ssize_t sent = send(socket, data, size, MSG_NOSIGNAL);
        if (sent <= 0) return -1;
        data += sent;
        size -= (size_t)sent;
    }
    return 0;
}

static int answer(Request *request, const char *status, const char *headers, const char *body) {
    char text[HEAD_LIMIT];
    int size = snprintf(text, sizeof text, "HTTP/1.1 %s\r\nServer: s3_server\r\n%sContent-Length: %zu\r\n\r\n%s",
                        status, headers, strlen(body), body);
    return send_all(request->socket, text, (size_t)size);
}

static int no_such(Request *request, const char *code) {
    char body[256];
    snprintf(body, sizeof body, "<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>%s</Message></Error>", code,
             code);
    return answer(request, "404 Not Found", "Content-Type: application/xml\r\n",
                  strcmp(request->method, "HEAD") ? body : "");
}

/* The whole head of the next request in the buffer; 0 at the end of the connection. */
static int read_head(Request *request) {
    char *end;
    while (request->buffer[request->have] = 0, (end = memmem(request->buffer, request->have, "\r\n\r\n", 4)) == NULL) {
        if (request->have == HEAD_LIMIT) return 0;
        ssize_t got = recv(request->socket, request->buffer + request->have, HEAD_LIMIT - request->have, 0);
        if (got <= 0) return 0;
        request->have += (size_t)got;
    }
    request->head = (size_t)(end - request->buffer) + 4;
    request->length = 0;
    request->expects = 0;
    request->first = request->last = -1;
    if (sscanf(request->buffer, "%7s %4095s", request->method, request->target) != 2) return 0;
    for (char *line = strstr(request->buffer, "\r\n") + 2; line < end; line = strstr(line, "\r\n") + 2) {
        if (!strncasecmp(line, "content-length:", 15)) request->length = strtoull(line + 15, NULL, 10);
        if (!strncasecmp(line, "expect:", 7)) request->expects = 1;
        if (!strncasecmp(line, "range:", 6)) {
            request->last = -1;
            sscanf(line + 6, " bytes=%ld-%ld", &request->first, &request->last);
        }
    }
    return 1;
}

/* The body into memory of its own. 0 when the connection ended within it. */
static int read_body(Request *request, Part *part) {
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    if (request->expects && send_all(request->socket, go_on, sizeof go_on - 1) < 0) return 0;
    part->size = request->length;
    part->data = need(malloc(part->size ? part->size : 1));
    size_t there = request->have - request->head;
    if (there > part->size) there = part->size;
    memcpy(part->data, request->buffer + request->head, there);
    request->have -= request->head + there;
    memmove(request->buffer, request->buffer + request->head + there, request->have);
    while (there < part->size) {
        ssize_t got = recv(request->socket, part->data + there, part->size - there, 0);
        if (got <= 0) {
            free(part->data);
            return 0;
        }
        there += (size_t)got;
    }
    return 1;
}

static int send_object(Request *request, const char *key) {
    Object *object = hold(key);
    if (object == NULL) return no_such(request, "NoSuchKey");
    size_t first = 0, last = object->size;
    int partial = request->first >= 0;
    if (partial) {
        first = (size_t)request->first;
        if (request->last >= 0 && (size_t)request->last + 1 < last) last = (size_t)request->last + 1;
    }
    if (first > last) {
        release(object);
        return answer(request, "416 Range Not Satisfiable", "", "");
    }
    char head[512];
    int size = snprintf(head, sizeof head,
                        "HTTP/1.1 %s\r\nServer: s3_server\r\nETag: \"%zx-opaque\"\r\nAccept-Ranges: bytes\r\n"
                        "Last-Modified: Sat, 01 Jan 2000 00:00:00 GMT\r\nContent-Length: %zu\r\n",
                        partial ? "206 Partial Content" : "200 OK", object->size, last - first);
    if (partial)
        size += snprintf(head + size, sizeof head - (size_t)size, "Content-Range: bytes %zu-%zu/%zu\r\n", first,
                         last - 1, object->size);
    size += snprintf(head + size, sizeof head - (size_t)size, "\r\n");
    int more = strcmp(request->method, "HEAD") && last > first;
    int sent = send(request->socket, head, (size_t)size, MSG_NOSIGNAL | (more ? MSG_MORE : 0)) == size ? 0 : -1;
    size_t start = 0;
    for (int i = 0; more && i < object->count && !sent; i++) {
        Part part = object->parts[i];
        size_t from = first > start ? first - start : 0, to = last > start ? last - start : 0;
        if (to > part.size) to = part.size;
        if (from < to) sent = send_all(request->socket, part.data + from, to - from);
        start += part.size;
    }
    release(object);
    return sent;
}

static int put_part(Request *request, unsigned long id, int number, Part part) {
    pthread_mutex_lock(&lock);
    Upload *upload = *find_upload(id);
    if (upload && number > 0 && number < MAX_PARTS) {
        free(upload->parts[number].data);
        upload->parts[number] = part;
    } else {
        free(part.data);
        upload = NULL;
    }
    pthread_mutex_unlock(&lock);
    return upload ? answer(request, "200 OK", "ETag: \"part\"\r\n", "") : no_such(request, "NoSuchUpload");
}

/* Completes with every part there is: the client's list of them is not looked at. NULL key: aborts. */
static int end_upload(Request *request, const char *key, unsigned long id) {
    pthread_mutex_lock(&lock);
    Upload **place = find_upload(id), *upload = *place;
    if (upload) *place = upload->next;
    pthread_mutex_unlock(&lock);
    if (upload == NULL) return no_such(request, "NoSuchUpload");
    int count = 0;
    for (int number = 1; number < MAX_PARTS; number++)
        if (upload->parts[number].data) upload->parts[count++] = upload->parts[number];
    if (key) {
        store(key, make_object(upload->parts, count));
    } else {
        while (count--) free(upload->parts[count].data);
    }
    free(upload);
    if (key == NULL) return answer(request, "204 No Content", "", "");
    return answer(request, "200 OK", "Content-Type: application/xml\r\n",
                  "<?xml version=\"1.0\"?><CompleteMultipartUploadResult><Location>-</Location><Bucket>-</Bucket>"
                  "<Key>-</Key><ETag>&quot;whole-1&quot;</ETag></CompleteMultipartUploadResult>");
}

static int begin_upload(Request *request) {
    Upload *upload = need(calloc(1, sizeof(Upload)));
    upload->id = atomic_fetch_add(&last_id, 1) + 1;
    unsigned long id = upload->id;
    pthread_mutex_lock(&lock);
    upload->next = uploads;
    uploads = upload;
    pthread_mutex_unlock(&lock);
    char body[512];
    snprintf(body, sizeof body,
             "<?xml version=\"1.0\"?><InitiateMultipartUploadResult><Bucket>-</Bucket><Key>-</Key>"
             "<UploadId>%lu</UploadId></InitiateMultipartUploadResult>",
             id);
    return answer(request, "200 OK", "Content-Type: application/xml\r\n", body);
}

static int serve(Request *request) {
    Part body = {NULL, 0};
    char *query = strchr(request->target, '?');
    if (query) *query++ = 0;
    const char *id_text = query ? strstr(query, "uploadId=") : NULL;
    const char *number = query ? strstr(query, "partNumber=") : NULL;
    unsigned long id = id_text ? strtoul(id_text + 9, NULL, 10) : 0;
    if (!read_body(request, &body)) return -1;
    if (!strcmp(request->method, "PUT")) {
        if (number) return put_part(request, id, atoi(number + 11), body);
        store(request->target, make_object(&body, 1));
        return answer(request, "200 OK", "ETag: \"opaque\"\r\n", "");
    }
    free(body.data);
    if (!strcmp(request->method, "GET") && query && !strncmp(query, "uploads", 7))
        return answer(request, "200 OK", "Content-Type: application/xml\r\n",
                      "<?xml version=\"1.0\"?><ListMultipartUploadsResult><IsTruncated>false</IsTruncated>"
                      "</ListMultipartUploadsResult>");
    if (!strcmp(request->method, "GET") || !strcmp(request->method, "HEAD"))
        return send_object(request, request->target);
    if (!strcmp(request->method, "POST"))
        return id ? end_upload(request, request->target, id) : begin_upload(request);
    if (!strcmp(request->method, "DELETE")) {
        if (id) return end_upload(request, NULL, id);
        store(request->target, NULL);
        return answer(request, "204 No Content", "", "");
    }
    return answer(request, "501 Not Implemented", "", "");
}

static void *connection(void *argument) {
    Request *request = argument;
    int yes = 1;
    setsockopt(request->socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    while (read_head(request) && serve(request) == 0) {
    }
    close(request->socket);
    free(request);
    return NULL;
}

int main(void) {
    /* Memory of what was overwritten is used again as it is: the kernel need not clear pages for each run. */
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, -1);
    mallopt(M_ARENA_MAX, 1);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 512)) {
        perror("s3_server");
        return 1;
    }
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        Request *request = need(calloc(1, sizeof(Request)));
        request->socket = accept(listener, NULL, NULL);
        pthread_t thread;
        if (request->socket < 0 || pthread_create(&thread, NULL, connection, request)) {
            free(request);
            continue;
        }
        pthread_detach(thread);
    }
}
