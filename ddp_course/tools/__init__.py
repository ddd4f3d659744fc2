"""What you can take into a project of your own; needs torch >= 2.4 and psutil, no lesson.

- `ddp_course.tools.diagnose`: a launch that hangs or dies, with the rank and the line.
- `ddp_course.tools.audit`: is the data split, are replicas in sync, gradients averaged, and do
  the ranks' collectives pair up?
- `ddp_course.tools.rehearse`: a GPU script, unchanged, on pretended GPUs before it goes to the
  cluster.
- `ddp_course.tools.checkpoint`: save training so that it can be resumed to the bit.
- `ddp_course.tools.preemption`: leave at the next step, all ranks together, when told to.
- `ddp_course.tools.cluster_check`: the first script on any cluster.
- `ddp_course.tools.collectives`: the few collectives that the others share.
"""
