"""Diagnosis of a wrong result: which known mistake reproduces it?

A hypothesis predicts the result of one mistake. The nearest is reported, if it is near enough.
"""
