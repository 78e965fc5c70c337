"""What rialto leaves in the root of a result beside what the format asks for."""

# A digest of every tensor and side file.
MANIFEST = "rialto-manifest.json"
# What the run did and when: no two are equal, of equal results either.
REPORT = "rialto-report.json"
