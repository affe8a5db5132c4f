/* The device: list, open, port, tables, protection domains, address handles. */
#include "hca.h"
#include "tcp.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define GUID 0x506b4b0300f70001ull
#define GUID_STEP 0x100
#define HOST_STEP 0x10000

/* gid_type of /usr/include: IBVERBS_PRIVATE_34's ibv_query_gid_type */
enum sysfs_gid_type { SYSFS_IB_ROCE_V1, SYSFS_ROCE_V2 };
int ibv_query_gid_type(struct ibv_context *c, uint8_t port, unsigned index, enum sysfs_gid_type *type);

static struct ibv_device devices[HCA_DEVICES];
static int device_count;
static pthread_once_t devices_once = PTHREAD_ONCE_INIT;

/*
 * The tree that sysfs.sh makes stands for /sys/class/infiniband. Programs that put the device's name into a path of their own find it there too,
 * without privilege, when the name leads out of /sys.
 */
static void make_devices(void)
{
	const char *n = getenv("SOFTHCA_DEVICES"), *tree = getenv("SOFTHCA_SYSFS"), *path = getenv("SOFTHCA_NAMES");
	const char *root = tree ? tree : "/sys/class/infiniband";

	device_count = n ? atoi(n) : 1;
	if (device_count < 1 || device_count > HCA_DEVICES) {
		fprintf(stderr, "softhca: SOFTHCA_DEVICES: '%s' is not a number from 1 to %d\n", n, HCA_DEVICES);
		exit(1);
	}
	for (int i = 0; i < device_count; i++) {
		struct ibv_device *d = &devices[i];

		d->node_type = IBV_NODE_CA;
		d->transport_type = IBV_TRANSPORT_IB;
		if (path && tree && snprintf(d->name, sizeof d->name, "../../..%s/mlx5_%d", tree, i) >= (int)sizeof d->name) {
			fprintf(stderr, "softhca: SOFTHCA_SYSFS: '%s' is too long for a device's name\n", tree);
			exit(1);
		}
		if (!path || !tree)
			snprintf(d->name, sizeof d->name, "mlx5_%d", i);
		snprintf(d->dev_name, sizeof d->dev_name, "uverbs%d", i);
		snprintf(d->dev_path, sizeof d->dev_path, "/sys/class/infiniband_verbs/uverbs%d", i);
		snprintf(d->ibdev_path, sizeof d->ibdev_path, "%s/mlx5_%d", root, i);
	}
}

static int index_of(const struct ibv_device *d)
{
	return (int)(d - devices);
}

static int host(void)
{
	return tcp_host() > 0 ? tcp_host() : 0;
}

static uint64_t guid(int device)
{
	return GUID + (uint64_t)device * GUID_STEP + (uint64_t)host() * HOST_STEP;
}

uint16_t device_lid(const struct ibv_context *c)
{
	return (uint16_t)(HCA_LID + host() * HCA_DEVICES + index_of(c->device));
}

struct ibv_device **ibv_get_device_list(int *n)
{
	struct ibv_device **l;

	pthread_once(&devices_once, make_devices);
	l = calloc(device_count + 1, sizeof *l);
	for (int i = 0; l && i < device_count; i++)
		l[i] = &devices[i];
	if (n)
		*n = l ? device_count : 0;
	return l;
}

void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

const char *ibv_get_device_name(struct ibv_device *d)
{
	return d->name;
}

__be64 ibv_get_device_guid(struct ibv_device *d)
{
	return htobe64(guid(index_of(d)));
}

int ibv_get_device_index(struct ibv_device *d)
{
	return index_of(d);
}

static int gid_count(void)
{
	return hca.ethernet ? 2 : 1;
}

void device_gid(const struct ibv_context *c, union ibv_gid *gid, int index)
{
	memset(gid, 0, sizeof *gid);
	if (index == 0) {
		gid->global.subnet_prefix = htobe64(0xfe80000000000000ull);
		gid->global.interface_id = htobe64(guid(index_of(c->device)));
	} else { /* the IPv4 address 10.0.0.1 and the next ones */
		gid->raw[10] = gid->raw[11] = 0xff;
		gid->raw[12] = 10;
		gid->raw[14] = (uint8_t)host();
		gid->raw[15] = (uint8_t)(1 + index_of(c->device));
	}
}

static int query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *out, size_t size)
{
	struct ibv_port_attr a = {
		.state = IBV_PORT_ACTIVE,
		.max_mtu = IBV_MTU_4096,
		.active_mtu = IBV_MTU_4096,
		.gid_tbl_len = gid_count(),
		.port_cap_flags = 0x2651e848,
		.max_msg_sz = 1u << 30,
		.pkey_tbl_len = 1,
		.max_vl_num = 4,
		.active_width = 2,  /* 4x */
		.active_speed = 64, /* HDR */
		.phys_state = 5,    /* link up */
		.link_layer = hca.ethernet ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND,
		.lid = hca.ethernet ? 0 : device_lid(c),
		.sm_lid = hca.ethernet ? 0 : HCA_LID,
		.subnet_timeout = hca.ethernet ? 0 : 18,
	};

	if (port != 1)
		return EINVAL;
	/* programs bring the structure of the header they were built with */
	memset(out, 0, size);
	memcpy(out, &a, size < sizeof a ? size : sizeof a);
	return 0;
}

/* The form that old programs and dlsym users call: without the newer fields. */
static int query_port_old(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *out)
{
	return query_port(c, port, (struct ibv_port_attr *)out, offsetof(struct ibv_port_attr, port_cap_flags2));
}

int ibv_query_port(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *out)
{
	return query_port_old(c, port, out);
}

int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a)
{
	*a = (struct ibv_device_attr){
		.fw_ver = "28.43.1014",
		.node_guid = htobe64(guid(index_of(c->device))),
		.sys_image_guid = htobe64(guid(index_of(c->device))),
		.max_mr_size = UINT64_MAX,
		.page_size_cap = ~(uint64_t)(SHM_PAGE - 1),
		.vendor_id = 0x2c9,
		.vendor_part_id = 4129,
		.max_qp = SHM_QPS - 1,
		.max_qp_wr = HCA_MAX_WR,
		.max_sge = HCA_MAX_SGE,
		.max_sge_rd = HCA_MAX_SGE,
		.max_cq = SHM_CQS - 1,
		.max_cqe = HCA_MAX_CQE - 1,
		.max_mr = SHM_MRS - 1,
		.max_pd = 1 << 20,
		.max_qp_rd_atom = 16,
		.max_res_rd_atom = 16 * SHM_QPS,
		.max_qp_init_rd_atom = 16,
		.atomic_cap = IBV_ATOMIC_HCA,
		.max_ah = INT32_MAX,
		.max_srq = SHM_RQS - 1,
		.max_srq_wr = HCA_MAX_WR,
		.max_srq_sge = HCA_MAX_SGE,
		.max_pkeys = 1,
		.local_ca_ack_delay = 16,
		.phys_port_cnt = 1,
	};
	return 0;
}

static int query_device_ex(struct ibv_context *c, const struct ibv_query_device_ex_input *in, struct ibv_device_attr_ex *out, size_t size)
{
	struct ibv_device_attr_ex a = {
		.completion_timestamp_mask = UINT64_MAX,
		.hca_core_clock = 1000000, /* kHz: completion times are in ns */
	};

	if (in && in->comp_mask)
		return EINVAL;
	ibv_query_device(c, &a.orig_attr);
	a.phys_port_cnt_ex = 1;
	memset(out, 0, size);
	memcpy(out, &a, size < sizeof a ? size : sizeof a);
	return 0;
}

static int query_rt_values(struct ibv_context *c, struct ibv_values_ex *v)
{
	(void)c;
	if (v->comp_mask & IBV_VALUES_MASK_RAW_CLOCK) {
		uint64_t t = now_ns();

		v->raw_clock.tv_sec = 0;
		v->raw_clock.tv_nsec = t; /* the counter itself, as mlx5 has it */
	}
	return 0;
}

int ibv_query_gid(struct ibv_context *c, uint8_t port, int index, union ibv_gid *gid)
{
	if (port != 1 || index < 0 || index >= gid_count()) {
		errno = EINVAL;
		return -1;
	}
	device_gid(c, gid, index);
	return 0;
}

int _ibv_query_gid_ex(struct ibv_context *c, uint32_t port, uint32_t index, struct ibv_gid_entry *out, uint32_t flags, size_t size)
{
	struct ibv_gid_entry e = {
		.gid_index = index,
		.port_num = port,
		.gid_type = hca.ethernet ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_IB,
	};

	if (flags || port != 1 || index >= (uint32_t)gid_count())
		return EINVAL;
	device_gid(c, &e.gid, index);
	memcpy(out, &e, size < sizeof e ? size : sizeof e);
	return 0;
}

ssize_t _ibv_query_gid_table(struct ibv_context *c, struct ibv_gid_entry *out, size_t max, uint32_t flags, size_t size)
{
	size_t n = 0;

	for (; n < max && n < (size_t)gid_count(); n++) {
		int rc = _ibv_query_gid_ex(c, 1, n, (struct ibv_gid_entry *)((char *)out + n * size), flags, size);

		if (rc)
			return -rc;
	}
	return n;
}

int ibv_query_gid_type(struct ibv_context *c, uint8_t port, unsigned index, enum sysfs_gid_type *type)
{
	(void)c;
	if (port != 1 || index >= (unsigned)gid_count()) {
		errno = EINVAL;
		return -1;
	}
	*type = hca.ethernet ? SYSFS_ROCE_V2 : SYSFS_IB_ROCE_V1;
	return 0;
}

int ibv_query_pkey(struct ibv_context *c, uint8_t port, int index, __be16 *pkey)
{
	(void)c;
	if (port != 1 || index != 0) {
		errno = EINVAL;
		return -1;
	}
	*pkey = htobe16(0xffff);
	return 0;
}

int ibv_get_pkey_index(struct ibv_context *c, uint8_t port, __be16 pkey)
{
	(void)c;
	if (port != 1 || pkey != htobe16(0xffff)) {
		errno = EINVAL;
		return -1;
	}
	return 0;
}

static uint32_t next_pdn(void)
{
	static _Atomic uint32_t n;

	return atomic_fetch_add(&n, 1) + 1;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
	struct hca_pd *p = calloc(1, sizeof *p);

	if (!p)
		return NULL;
	p->pdn = next_pdn();
	p->pd.context = c;
	p->pd.handle = p->pdn;
	return &p->pd;
}

/* Same protection as its base; its threads and allocators are not needed. */
static struct ibv_pd *alloc_parent_domain(struct ibv_context *c, struct ibv_parent_domain_init_attr *a)
{
	struct hca_pd *p;

	if (!a->pd || (a->comp_mask & ~(uint32_t)(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT))) {
		errno = EINVAL;
		return NULL;
	}
	p = calloc(1, sizeof *p);
	if (!p)
		return NULL;
	p->base = to_pd(a->pd);
	p->pdn = p->base->pdn;
	p->pd.context = c;
	p->pd.handle = p->pdn;
	atomic_fetch_add(&p->base->users, 1);
	return &p->pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	struct hca_pd *p = to_pd(pd);

	if (atomic_load(&p->users))
		return EBUSY;
	if (p->base)
		atomic_fetch_sub(&p->base->users, 1);
	free(p);
	return 0;
}

static struct ibv_td *alloc_td(struct ibv_context *c, struct ibv_td_init_attr *a)
{
	struct ibv_td *t;

	if (a->comp_mask) {
		errno = EINVAL;
		return NULL;
	}
	t = calloc(1, sizeof *t);
	if (t)
		t->context = c;
	return t;
}

static int dealloc_td(struct ibv_td *t)
{
	free(t);
	return 0;
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *a)
{
	struct hca_ah *h;

	if (a->port_num != 1 || (a->is_global && a->grh.sgid_index >= gid_count()) || (hca.ethernet && !a->is_global)) {
		errno = EINVAL;
		return NULL;
	}
	h = calloc(1, sizeof *h);
	if (!h)
		return NULL;
	h->attr = *a;
	h->ah.context = pd->context;
	h->ah.pd = pd;
	return &h->ah;
}

int ibv_init_ah_from_wc(struct ibv_context *c, uint8_t port, struct ibv_wc *wc, struct ibv_grh *grh, struct ibv_ah_attr *a)
{
	(void)c;
	*a = (struct ibv_ah_attr){ .dlid = wc->slid, .sl = wc->sl, .src_path_bits = wc->dlid_path_bits, .port_num = port };
	if (wc->wc_flags & IBV_WC_GRH) {
		a->is_global = 1;
		a->grh.dgid = grh->sgid;
		a->grh.hop_limit = 0xff;
	}
	return 0;
}

struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port)
{
	struct ibv_ah_attr a;

	ibv_init_ah_from_wc(pd->context, port, wc, grh, &a);
	return ibv_create_ah(pd, &a);
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
	free(ah);
	return 0;
}

struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	struct hca_context *h;
	struct ibv_context *c;

	if (hca_init())
		return NULL;
	h = calloc(1, sizeof *h);
	if (!h)
		return NULL;
	if (evq_init(&h->async)) {
		free(h);
		return NULL;
	}
	h->v.sz = sizeof h->v;
	h->v.query_port = query_port;
	h->v.query_device_ex = query_device_ex;
	h->v.query_rt_values = query_rt_values;
	h->v.alloc_parent_domain = alloc_parent_domain;
	h->v.alloc_td = alloc_td;
	h->v.dealloc_td = dealloc_td;
	h->v.create_qp_ex = op_create_qp_ex;
	h->v.create_cq_ex = op_create_cq_ex;
	h->v.modify_cq = op_modify_cq;
	h->v.create_srq_ex = op_create_srq_ex;
	h->v.get_srq_num = op_get_srq_num;
	c = &h->v.context;
	c->device = d;
	c->abi_compat = __VERBS_ABI_IS_EXTENDED;
	c->num_comp_vectors = 4;
	c->cmd_fd = eventfd(0, EFD_CLOEXEC);
	c->async_fd = h->async.fd;
	pthread_mutex_init(&c->mutex, NULL);
	c->ops._compat_query_device = ibv_query_device;
	c->ops._compat_query_port = query_port_old;
	c->ops.poll_cq = op_poll_cq;
	c->ops.req_notify_cq = op_req_notify_cq;
	c->ops.post_send = op_post_send;
	c->ops.post_recv = op_post_recv;
	c->ops.post_srq_recv = op_post_srq_recv;
	hca_log("open_device %s", d->name);
	return c;
}

int ibv_close_device(struct ibv_context *c)
{
	struct hca_context *h = to_context(c);

	close(c->cmd_fd);
	evq_close(&h->async);
	free(h);
	return 0;
}
