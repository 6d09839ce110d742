"""Diagnosis of a wrong result: which known mistake reproduces it?

A hypothesis predicts the result of one mistake. If the prediction nearest to the wrong result is
near enough, its mistake is reported.
"""
