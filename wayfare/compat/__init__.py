"""Names that PyTorch scripts expect: `wf.cuda`, `wf.backends`, `wf.utils`."""
