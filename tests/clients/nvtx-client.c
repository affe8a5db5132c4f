/* nvtx-client: NVTX ranges and marks in every form that a tool sees, with what the tool returns checked. Exits with 0 when a tool answered
 * as NVTX says, with 3 when there was none.
 *
 * Built with NVTX_HEADER it uses NVIDIA's header. Else it has an application's side of NVTX of its own, for what is used here: the loader
 * looks NVTX_INJECTION64_PATH up, opens that library and calls its InitializeInjectionNvtx2, which fills in the tables.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "tally.h"

#ifdef NVTX_HEADER
#include <nvtx3/nvToolsExt.h>
#else
typedef struct domain *nvtxDomainHandle_t;
typedef struct string *nvtxStringHandle_t;
typedef uint64_t nvtxRangeId_t;
typedef struct {
	uint16_t version, size;
	uint32_t category;
	int32_t colorType;
	uint32_t color;
	int32_t payloadType, reserved0;
	uint64_t payload;
	int32_t messageType;
	union {
		const char *ascii;
		const wchar_t *unicode;
		nvtxStringHandle_t registered;
	} message;
} nvtxEventAttributes_t;
enum { NVTX_VERSION = 3, NVTX_EVENT_ATTRIB_STRUCT_SIZE = sizeof(nvtxEventAttributes_t) };
enum { NVTX_MESSAGE_TYPE_ASCII = 1, NVTX_MESSAGE_TYPE_UNICODE, NVTX_MESSAGE_TYPE_REGISTERED };

enum { CORE = 16, CORE2 = 16 };
typedef void (*function)(void);
static function core[CORE], core2[CORE2];
static function *core_table[CORE + 1], *core2_table[CORE2 + 1];
static uint32_t tool_version;

static int functions(uint32_t module, function ***table, unsigned *entries)
{
	if (module != 1 && module != 5)
		return 0;
	*table = module == 1 ? core_table : core2_table;
	*entries = 16;
	return 1;
}
static void set_tool_version(uint32_t v) { tool_version = v; }
static struct {
	size_t size;
	int (*functions)(uint32_t, function ***, unsigned *);
} callbacks = { sizeof callbacks, functions };
static struct {
	size_t size;
	uint32_t version, reserved;
	void (*set)(uint32_t);
} versions = { sizeof versions, 3, 0, set_tool_version };
static const void *tables(uint32_t id) { return id == 1 ? (void *)&callbacks : id == 3 ? (void *)&versions : NULL; }

static void load(void)
{
	static int loaded;
	const char *path = getenv("NVTX_INJECTION64_PATH");
	if (loaded++)
		return;
	for (int i = 1; i < 16; i++) {
		core_table[i] = &core[i];
		core2_table[i] = &core2[i];
	}
	void *h = path ? dlopen(path, RTLD_LAZY) : NULL;
	int (*init)(const void *(*)(uint32_t)) = h ? (int (*)(const void *(*)(uint32_t)))dlsym(h, "InitializeInjectionNvtx2") : NULL;
	if (init && !init(tables)) {
		memset(core, 0, sizeof core);
		memset(core2, 0, sizeof core2);
	}
}
#define CALL(table, id, otherwise, type, ...) (load(), table[id] ? ((type)table[id])(__VA_ARGS__) : (otherwise))
#define DO(table, id, type, ...) do { load(); if (table[id]) ((type)table[id])(__VA_ARGS__); } while (0)
#define nvtxMarkA(m) DO(core, 2, void (*)(const char *), m)
#define nvtxMarkW(m) DO(core, 3, void (*)(const wchar_t *), m)
#define nvtxRangeStartA(m) CALL(core, 5, 0, uint64_t (*)(const char *), m)
#define nvtxRangeEnd(id) DO(core, 7, void (*)(uint64_t), id)
#define nvtxRangePushA(m) CALL(core, 9, -2, int (*)(const char *), m)
#define nvtxRangePushW(m) CALL(core, 10, -2, int (*)(const wchar_t *), m)
#define nvtxRangePop() CALL(core, 11, -2, int (*)(void), )
#define nvtxDomainMarkEx(d, a) DO(core2, 1, void (*)(nvtxDomainHandle_t, const nvtxEventAttributes_t *), d, a)
#define nvtxDomainRangeStartEx(d, a) CALL(core2, 2, 0, uint64_t (*)(nvtxDomainHandle_t, const nvtxEventAttributes_t *), d, a)
#define nvtxDomainRangeEnd(d, id) DO(core2, 3, void (*)(nvtxDomainHandle_t, uint64_t), d, id)
#define nvtxDomainRangePushEx(d, a) CALL(core2, 4, -2, int (*)(nvtxDomainHandle_t, const nvtxEventAttributes_t *), d, a)
#define nvtxDomainRangePop(d) CALL(core2, 5, -2, int (*)(nvtxDomainHandle_t), d)
#define nvtxDomainRegisterStringA(d, s) CALL(core2, 10, NULL, nvtxStringHandle_t (*)(nvtxDomainHandle_t, const char *), d, s)
#define nvtxDomainCreateA(m) CALL(core2, 12, NULL, nvtxDomainHandle_t (*)(const char *), m)
#endif

static nvtxRangeId_t across;

static void *other_thread(void *p)
{
	nvtxRangeEnd(across);
	CHECK(nvtxRangePop() == -1); /* no range was begun in this thread */
	return p;
}

int main(void)
{
	if (nvtxRangePushA("outer") == -2) {
		fprintf(stderr, "no tool\n");
		return 3;
	}
	for (int i = 0; i < 3; i++) {
		CHECK(nvtxRangePushW(L"w\u00efde") == 1);
		CHECK(nvtxRangePop() == 1);
	}
	nvtxMarkA("mark");
	nvtxMarkW(L"wide mark");
	nvtxDomainHandle_t d = nvtxDomainCreateA("library");
	nvtxStringHandle_t registered = nvtxDomainRegisterStringA(d, "registered");
	CHECK(d && registered);
	nvtxEventAttributes_t a = { .version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE, .messageType = NVTX_MESSAGE_TYPE_REGISTERED };
	a.message.registered = registered;
	CHECK(nvtxDomainRangePushEx(d, &a) == 0); /* each domain counts its own levels */
	a.messageType = NVTX_MESSAGE_TYPE_ASCII;
	a.message.ascii = "ascii";
	CHECK(nvtxDomainRangePushEx(d, &a) == 1);
	nvtxDomainMarkEx(d, &a);
	CHECK(nvtxRangePop() == 0); /* "outer": domains need not nest in one another */
	CHECK(nvtxDomainRangePop(d) == 1 && nvtxDomainRangePop(d) == 0 && nvtxDomainRangePop(d) == -1);
	a.messageType = NVTX_MESSAGE_TYPE_UNICODE;
	a.message.unicode = L"overlaps";
	nvtxRangeId_t one = nvtxDomainRangeStartEx(d, &a), two = nvtxDomainRangeStartEx(d, &a);
	CHECK(one && two && one != two);
	nvtxDomainRangeEnd(d, one);
	nvtxDomainRangeEnd(d, two);
	across = nvtxRangeStartA("across");
	pthread_t t;
	CHECK(!pthread_create(&t, NULL, other_thread, NULL) && !pthread_join(t, NULL));
	puts("nvtx-client ok");
	return 0;
}
