"""The first stage: `torch.export` runs the module once; what it would lose without a word is noted or replaced.

`export_module` (export.py) is what the other stages use. What is in force while the module runs is in patches/.
"""
