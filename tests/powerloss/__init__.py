"""Power cuts: a recorder of a program's changes on disk, and the disks that a cut may leave."""
