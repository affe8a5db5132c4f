/* What uct_edge.c and the library that stands in for libuct share. */
#include <uct/api/uct.h>

/* What the next calls are to do, and what the last one got. */
struct fake {
    ucs_status_t status;                 /* returned; by functions that pack, only when it is an error */
    void (*within)(uct_completion_t *);  /* run by each call before it returns */
    uint64_t args[8];                    /* of the last call, without endpoint and completion */
    int calls, given;                    /* calls; whether the last one had a completion */
    int closed, destroyed;
    unsigned version[3];                 /* that ucp_get_version tells */
};
extern __thread struct fake fake; /* version: of the main thread */

/* Ends the oldest outstanding operation of an endpoint, as a transport would. False: there is none. */
int fake_complete(uct_ep_h ep, ucs_status_t status);
/* The functions of an interface as the library made them. */
const uct_iface_ops_t *fake_ops(uct_iface_h iface);
