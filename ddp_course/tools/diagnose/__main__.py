import sys

from ddp_course.tools.diagnose import main

sys.exit(main())
