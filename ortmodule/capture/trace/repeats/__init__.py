"""Equal blocks of a model are traced once: the others of its layers repeat what the first has recorded.

`Repeats` is asked at each call of a module. Of what there is more than once it has the first run recorded (record.py);
where another has the same structure (pairing.py), and nothing that the first one read has changed meanwhile, its nodes
are copied (nodes.py), and one node of autograd's stands for what the run would have recorded (histories.py).

Not here: what the block reads and what of it has changed (graph_transition/audit/blocks.py).
"""
