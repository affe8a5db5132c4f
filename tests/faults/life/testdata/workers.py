"""workers.py START HOW WORKERS N: a parent and its process pool, each of which posts N writes through pyverbs.

START is fork or spawn; HOW is how the workers end: return, os._exit, terminate.
"""
import multiprocessing
import os
import sys


def post(n):
    # Imported where it is needed, as frameworks do: the library comes in by dlopen, local to the extension module.
    import pyverbs.enums as e
    from pyverbs.addr import AHAttr, GlobalRoute
    from pyverbs.cq import CQ
    from pyverbs.device import Context, get_device_list
    from pyverbs.mr import MR
    from pyverbs.pd import PD
    from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
    from pyverbs.wr import SGE, SendWR

    context = Context(name=get_device_list()[0].name.decode())
    pd, cq = PD(context), CQ(context, 16)
    region = MR(pd, 128, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
    attr = QPAttr(port_num=1)
    attr.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
    qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(max_send_wr=8, max_recv_wr=1)), attr)
    route = GlobalRoute(dgid=context.query_gid(1, 0), sgid_index=0, hop_limit=1)
    attr.ah_attr = AHAttr(dlid=context.query_port(1).lid, port_num=1, is_global=1, gr=route)
    attr.dest_qp_num, attr.path_mtu, attr.max_rd_atomic, attr.max_dest_rd_atomic = qp.qp_num, e.IBV_MTU_1024, 1, 1
    attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
    qp.to_rts(attr)
    for _ in range(n):
        wr = SendWR(opcode=e.IBV_WR_RDMA_WRITE, num_sge=1, sg=[SGE(region.buf, 64, region.lkey)])
        wr.set_wr_rdma(region.rkey, region.buf + 64)
        qp.post_send(wr)
        got = 0
        while not got:
            got, completions = cq.poll(1)
        assert completions[0].status == e.IBV_WC_SUCCESS, completions[0].status


def worker(n, how, done):
    post(n)
    done.set()
    if how == "os._exit":
        os._exit(3)
    if how == "terminate":
        while True:
            pass


def main():
    start, how, workers, n = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    ctx = multiprocessing.get_context(start)
    if start == "fork":
        post(n)  # before there are children, which inherit it
    for i in range(workers):
        done = ctx.Event()
        p = ctx.Process(target=worker, args=(n, how, done))
        p.start()
        if how == "terminate":
            done.wait()
            p.terminate()
        p.join()
        print("worker", i, p.exitcode)
    post(n)
    print("parent")


if __name__ == "__main__":
    main()
