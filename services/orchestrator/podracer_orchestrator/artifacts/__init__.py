"""Artifacts: what can be downloaded, earlier versions of uploads, and what is deleted when nothing needs it."""
