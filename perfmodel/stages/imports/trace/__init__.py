"""Classes without a family: run on meta tensors, their operators as polynomials of the request.

Needs torch and the library of the class; only ``models import`` and ``--model DIRECTORY`` come
here, and only for such a class.
"""
