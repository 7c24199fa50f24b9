"""Unit constants: base units inside the model, prefixes only where text meets a person.

Rates and vendor capacities are decimal, allocator memory is binary.
"""

KILO = 1e3
MEGA = 1e6
GIGA = 1e9
TERA = 1e12

KIB = 1024
MIB = 1024**2
GIB = 1024**3

MS_PER_S = 1e3
US_PER_S = 1e6
S_PER_MINUTE = 60.0
S_PER_HOUR = 3600.0
BITS_PER_BYTE = 8
PERCENT = 100.0
