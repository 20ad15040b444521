"""Types that judges are built from: judge, prompt, verdict, judge model and exploration. They import nothing else."""
