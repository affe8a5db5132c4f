package install

import (
	"path/filepath"
	"strings"
	"testing"
)

// The line for the plugin goes where Slurm looks: beside the slurm.conf in use, or where that says.
func TestPlugstackOfTheSlurmInUse(t *testing.T) {
	for _, c := range []struct{ name, slurm, conf, says, want string }{
		{"beside", "/opt/slurm/etc/slurm.conf", "opt/slurm/etc/plugstack.conf", "# PlugStackConfig=/nowhere\n", "opt/slurm/etc/p.d"},
		{"named", "/opt/slurm/etc/slurm.conf", "srv/plugstack.site", "plugstackconfig = /srv/plugstack.site # the site's\n", "srv/p.d"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root, environ := staged(t)
			write(t, filepath.Join(root, c.slurm), "ClusterName=c\n"+c.says)
			write(t, filepath.Join(root, c.conf), "include /"+c.want+"/*\n")
			write(t, filepath.Join(root, c.want, "other.conf"), "# another plugin's\n")
			must(t, top, append(environ, "SLURM_CONF="+c.slurm), "--prefix=/opt/s", "--plugstack")
			got := files(t, root)
			if !strings.Contains(got[c.want+"/sigmatrace.conf"], "\noptional /opt/s/lib/slurm/") {
				t.Errorf("nothing loads the plugin: %q", got[c.want+"/sigmatrace.conf"])
			}
			if _, there := got["etc/slurm/plugstack.conf.d/sigmatrace.conf"]; there {
				t.Error("another Slurm's plugins were changed")
			}
		})
	}
}
