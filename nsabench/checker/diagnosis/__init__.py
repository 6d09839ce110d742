"""Diagnosis of a wrong result: which known mistake reproduces it?

A hypothesis predicts the result of a mistake. The nearest mistake is reported, if near enough.
"""
