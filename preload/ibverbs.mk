# Provider ibverbs: built with the headers of libibverbs-dev, linked against no RDMA library.
PROVIDERS += ibverbs
ibverbs_SRC := $(addprefix preload/,ibverbs_real.c ibverbs_context.c ibverbs_define.c ibverbs_setup.c ibverbs_lend.c ibverbs_post.c ibverbs_wr.c ibverbs_poll.c gpu_of.c)
ibverbs_MAP := preload/ibverbs.map
