"""`fairbed reproduce`: the published tables of the sources beside the same experiments here.

study, studies/  each source as data: panels, runs, published rows, ordering claims, deviations
record           the small result file of a finished cell, and what it depends on
measures         numbers in the metrics and units of a source, from the records (pure)
claims           whether a claim holds, fails, has no power or is not comparable (pure)
results          rows and claims of a study over its records (pure)
running          the cells that are left, run by the workers of `fairbed compare`
page, figure     the results as Markdown, HTML, CSV and SVG
options, cli     the command
"""
