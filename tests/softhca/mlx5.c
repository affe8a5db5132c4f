/*
 * libmlx5.so.1. What is named here works; everything else of the library's interface is a generated stub. The objects belong to the adapter,
 * which lives in libibverbs.so.1.
 */
#include "devx.h"

#include <errno.h>
#include <string.h>

/*
 * True makes programs look for DEVX objects and doorbell pages; false leads them to the verbs path of the same device.
 */
bool mlx5dv_is_supported(struct ibv_device *device)
{
	(void)device;
	return softhca_devx()->enabled();
}

struct ibv_context *mlx5dv_open_device(struct ibv_device *device, struct mlx5dv_context_attr *attr)
{
	if (attr && (attr->flags & MLX5DV_CONTEXT_FLAGS_DEVX) && !softhca_devx()->enabled()) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return ibv_open_device(device);
}

int mlx5dv_query_device(struct ibv_context *context, struct mlx5dv_context *out)
{
	(void)context;
	memset(out, 0, sizeof *out);
	if (!softhca_devx()->enabled())
		return EOPNOTSUPP;
	out->version = 1;
	out->flags = MLX5DV_CONTEXT_FLAGS_CQE_V1 | MLX5DV_CONTEXT_FLAGS_DEVX;
	return 0;
}

struct mlx5dv_devx_uar *mlx5dv_devx_alloc_uar(struct ibv_context *context, uint32_t flags)
{
	return softhca_devx()->alloc_uar(context, flags);
}

void mlx5dv_devx_free_uar(struct mlx5dv_devx_uar *uar)
{
	softhca_devx()->free_uar(uar);
}

struct mlx5dv_devx_umem *mlx5dv_devx_umem_reg(struct ibv_context *context, void *addr, size_t size, uint32_t access)
{
	(void)access;
	return softhca_devx()->umem_reg(context, addr, size);
}

struct mlx5dv_devx_umem *mlx5dv_devx_umem_reg_ex(struct ibv_context *context, struct mlx5dv_devx_umem_in *in)
{
	return softhca_devx()->umem_reg(context, in->addr, in->size);
}

int mlx5dv_devx_umem_dereg(struct mlx5dv_devx_umem *umem)
{
	return softhca_devx()->umem_dereg(umem);
}

int mlx5dv_devx_query_eqn(struct ibv_context *context, uint32_t vector, uint32_t *eqn)
{
	(void)context;
	(void)vector;
	*eqn = 1;
	return 0;
}

int mlx5dv_devx_general_cmd(struct ibv_context *context, const void *in, size_t inlen, void *out, size_t outlen)
{
	(void)context;
	return softhca_devx()->general_cmd(in, inlen, out, outlen);
}

struct mlx5dv_devx_obj *mlx5dv_devx_obj_create(struct ibv_context *context, const void *in, size_t inlen, void *out, size_t outlen)
{
	return softhca_devx()->obj_create(context, in, inlen, out, outlen);
}

int mlx5dv_devx_obj_modify(struct mlx5dv_devx_obj *obj, const void *in, size_t inlen, void *out, size_t outlen)
{
	return softhca_devx()->obj_modify(obj, in, inlen, out, outlen);
}

/* Nobody who was seen to ask looks at more than the status. */
int mlx5dv_devx_obj_query(struct mlx5dv_devx_obj *obj, const void *in, size_t inlen, void *out, size_t outlen)
{
	(void)obj;
	(void)in;
	(void)inlen;
	memset(out, 0, outlen);
	return 0;
}

int mlx5dv_devx_obj_destroy(struct mlx5dv_devx_obj *obj)
{
	return softhca_devx()->obj_destroy(obj);
}

int mlx5dv_devx_qp_modify(struct ibv_qp *qp, const void *in, size_t inlen, void *out, size_t outlen)
{
	return softhca_devx()->qp_modify(qp, in, inlen, out, outlen);
}

struct mlx5dv_devx_event_channel *mlx5dv_devx_create_event_channel(struct ibv_context *context, enum mlx5dv_devx_create_event_channel_flags flags)
{
	(void)context;
	(void)flags;
	return softhca_devx()->create_events();
}

void mlx5dv_devx_destroy_event_channel(struct mlx5dv_devx_event_channel *ch)
{
	softhca_devx()->destroy_events(ch);
}

int mlx5dv_devx_subscribe_devx_event(struct mlx5dv_devx_event_channel *ch, struct mlx5dv_devx_obj *obj, uint16_t size, uint16_t events[], uint64_t cookie)
{
	int rc = 0;

	for (uint16_t i = 0; !rc && i < size / sizeof *events; i++)
		rc = softhca_devx()->subscribe(ch, obj, events[i], cookie);
	return rc;
}

ssize_t mlx5dv_devx_get_event(struct mlx5dv_devx_event_channel *ch, struct mlx5dv_devx_async_event_hdr *out, size_t size)
{
	return softhca_devx()->get_event(ch, out, size);
}

/* Compressed completions are refused; entries are of 64 or 128 bytes. */
struct ibv_cq_ex *mlx5dv_create_cq(struct ibv_context *context, struct ibv_cq_init_attr_ex *a, struct mlx5dv_cq_init_attr *m)
{
	const bool sized = m && (m->comp_mask & MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE);

	if ((m && (m->comp_mask & ~(uint64_t)MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE)) || (sized && m->cqe_size != 64 && m->cqe_size != 128)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return softhca_devx()->create_cq(context, a, sized ? m->cqe_size : 64);
}

struct ibv_qp *mlx5dv_create_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *a, struct mlx5dv_qp_init_attr *m)
{
	if (m && m->comp_mask == MLX5DV_QP_INIT_ATTR_MASK_DC && m->dc_init_attr.dc_type == MLX5DV_DCTYPE_DCT)
		return softhca_devx()->create_dct(context, a, m->dc_init_attr.dct_access_key);
	/* data never lies in completions here: flags that allow or forbid that change nothing */
	if ((!m || !(m->comp_mask & ~(uint64_t)MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS)) && a->qp_type == IBV_QPT_RC && !(a->comp_mask & ~(uint32_t)IBV_QP_INIT_ATTR_PD))
		return ibv_create_qp(a->pd, (struct ibv_qp_init_attr *)a);
	errno = EOPNOTSUPP;
	return NULL;
}

int mlx5dv_init_obj(struct mlx5dv_obj *obj, uint64_t type)
{
	return softhca_devx()->init_obj(obj, type);
}
