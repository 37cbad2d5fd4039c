"""Runs jobs: stage, submit, follow, resume and stop. The only package that changes anything outside of this
machine."""
