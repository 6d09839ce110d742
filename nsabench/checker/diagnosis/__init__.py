"""Diagnosis of a wrong result: which known mistake reproduces it?

A hypothesis predicts the result of one mistake. The nearest one is reported with its error.
"""
